"""Quirks of KuaiRand's files that no other test names, each on a handful of made rows in the original format.

The others: `test_kuairand_log.py` (times, copies, ties, durations, plays, tabs, stays), `test_kuairand_tables.py`
(missing values, words, users without features) and `test_kuairand_names.py` (files, parts, the random log).
"""

import csv

import kuairand_oracle as oracle
import numpy as np
import pyarrow as pa
import pytest
from kuairand_oracle import NOON, USER, event
from test_kuairand_log import HOUR, column, ids_of, whole
from test_kuairand_tables import VIDEO, open_pure

import nestlab.data as data
from nestlab.data.kuairand_batches import DENSE_NAMES, FEATURES
from nestlab.data.kuairand_files import K1, USERS, VIDEOS
from nestlab.data.kuairand_tables import ONEHOTS, word_id
from nestlab.data.sequences import SequenceOptions

DAY = 24 * HOUR
FIRST = 1_649_475_960_000  # 2022-04-09 11:46 in Beijing

# Every word of the real tables, those that the authors' README does not list too.
DEGREES = (
    *("full_active", "high_active", "middle_active", "low_active", "single_low_active", "UNKNOWN"),
    *("2_14_day_new", "30day_retention", "day_new"),
)
FANS = ("0", "[1,10)", "[10,100)", "[100,1k)", "[1k,5k)", "[5k,1w)", "[1w,10w)", "[10w,100w)", "[100w,1000w)")
REGISTERED = ("8-14", "15-30", "31-60", "61-90", "91-180", "181-365", "366-730", "730+")


def user_line(number, **fields):
    """A row of the user table, with some of its fields replaced."""
    (row,) = csv.reader([USER.format(number)])
    values = dict(zip(oracle.USERS.split(","), row, strict=True)) | fields
    return ",".join(f'"{text}"' if "," in text else text for text in values.values())


@pytest.fixture
def opened(tmp_path):
    def open_rows(rows, name=oracle.LATE, **options):
        oracle.write_log(tmp_path, rows, name)
        return open_pure(tmp_path, **options)

    return open_rows


def last_events(dataset, **options):
    """(history, target) of every user but LEARNT's, the last event of each held out."""
    made = dataset.sequences(SequenceOptions(split="leave_one_out", negatives=0, **options))
    (batch,) = made.batches("heldout", 50)
    items, targets = ids_of(batch, "item"), made.targets("heldout").tolist()
    return [(run, target) for run, target in zip(items, targets, strict=True) if target != 43]


# A user long enough to be trained on, for the tests of others.
LEARNT = [event(99, 40 + i, NOON + i * HOUR) for i in range(4)]


def test_a_log_may_begin_later_than_its_name_says(opened):
    """Pure's standard log of 04-08 … begins on 04-09 at 11:46: days come from the rows, never from a file's name."""
    rows = [event(video=1, time_ms=FIRST), event(video=2, time_ms=FIRST + DAY)]
    dataset = opened(rows, oracle.EARLY)
    assert str(dataset.describe(10)["time"].loc[0, "first (Beijing)"]) == "2022-04-09 11:46:00"
    assert ids_of(whole(dataset), "hour") == [[11], [11]]


def test_rows_outside_the_days_of_their_file_stay_and_are_sorted_among_all(tmp_path, opened):
    """No sort within files is enough: the second period's file may hold the earlier event of a user."""
    oracle.write_log(tmp_path, [event(video=2, time_ms=NOON + 2)], oracle.EARLY)
    dataset = opened([event(video=3, time_ms=NOON + 3), event(video=1, time_ms=NOON - 20 * DAY)])
    assert column(dataset, "video_id") == [1, 2, 3]
    assert ids_of(whole(dataset, history=5), "hist_video_id") == [[], [1], [1, 2]]


def test_users_of_one_period_alone_are_kept(tmp_path, opened):
    """The inner join of the two periods, which loses users, is a trap that others fell into."""
    oracle.write_log(tmp_path, [event(1, 5, FIRST), event(2, 5, FIRST + 1), event(1, 6, FIRST + 2)], oracle.EARLY)
    dataset = opened([event(2, 6, NOON), event(3, 7, NOON + 1), event(3, 8, NOON + 2), *LEARNT])
    assert dataset.info.counts["users"] == 4
    assert sorted(column(dataset, "user_id")) == [1, 1, 2, 2, 3, 3, 99, 99, 99, 99]
    assert sorted(last_events(dataset)) == [([5], 6), ([5], 6), ([7], 8)]


def test_users_of_the_table_that_the_log_does_not_have_are_not_counted(tmp_path):
    """27,285 users have features in Pure, 27,077 have an event in its standard log."""
    oracle.write_users(tmp_path, [USER.format(i) for i in range(5)])
    oracle.write_log(tmp_path, [event(3), event(1, time_ms=NOON + 1)])
    assert open_pure(tmp_path).info.counts["users"] == 2


def test_click_and_long_view_are_as_written_never_by_rule(opened):
    """Whether a play is a click depends on the tab; a rule from play and duration holds in 97 to 99.7 % of the rows."""
    rows = [
        event(tab=0, is_click=1, play_time_ms=0),
        event(tab=1, is_click=0, play_time_ms=59_000, time_ms=NOON + 1),
        event(tab=1, is_click=1, long_view=1, play_time_ms=100, duration_ms=90_000, time_ms=NOON + 2),
        event(tab=0, long_view=0, play_time_ms=90_000, duration_ms=90_000, time_ms=NOON + 3),
    ]
    dataset = opened(rows)
    assert whole(dataset).labels.tolist() == [1, 0, 1, 0]
    assert whole(dataset, label="long_view").labels.tolist() == [0, 0, 1, 0]


def test_clicks_and_plays_are_told_by_tab(opened):
    """Tab 0 is a page of two columns: nearly nothing is played there, and far less is clicked."""
    rows = [event(tab=0, play_time_ms=0) for _ in range(3)] + [event(tab=0, is_click=1)]
    rows += [event(tab=1, is_click=1), event(tab=1)]
    tabs = opened(rows).describe(10)["tabs"].set_index("tab")
    assert tabs["click_rate"].to_dict() == {0: 0.25, 1: 0.5}
    assert tabs["zero_play"].to_dict() == {0: 0.75, 1: 0.0}
    assert tabs["share"].to_dict() == pytest.approx({0: 2 / 3, 1: 1 / 3})


def test_entering_a_profile_without_staying_is_an_action(opened):
    """profile_stay_time is 0 in nearly all rows with is_profile_enter: the flag counts, not the time."""
    dataset = opened([event(is_profile_enter=1, profile_stay_time=0), event(time_ms=NOON + 1)])
    assert whole(dataset, label="is_profile_enter").labels.tolist() == [1, 0]
    assert ids_of(whole(dataset, history=3), "hist_action") == [[], [128]]


def test_duration_zero_and_a_video_without_duration_are_both_missing(tmp_path):
    """The log's duration 0 stands where the table's video_duration is missing."""
    oracle.write_videos(tmp_path, [VIDEO.format(1).replace("358016.0", ""), VIDEO.format(2)])
    oracle.write_log(tmp_path, [event(video=1, duration_ms=0), event(video=2, time_ms=NOON + 1, duration_ms=358_016)])
    dataset = open_pure(tmp_path)
    assert dataset.joiner.videos.column("video_duration").to_pylist() == [None, 358_016]
    made = dataset.joiner.columns(dataset.table)["duration_s"].to_pylist()
    assert made == [None, pytest.approx(358.016)]
    plays = dataset.describe(10)["plays"].loc[0]
    assert plays["zero_duration"] == 0.5 and np.isfinite(plays["watch_ratio_max"])


def test_a_video_that_no_clock_could_play_is_kept(opened):
    """A ratio of play to duration up to 103; an EasyRL4Rec reader would divide by 0 here."""
    dataset = opened([event(play_time_ms=103_000, duration_ms=1_000), event(play_time_ms=7, duration_ms=0)])
    assert dataset.describe(10)["plays"].loc[0, "watch_ratio_max"] == 103
    assert column(dataset, "play_time_ms") == [103_000, 7]


def test_words_that_the_readme_does_not_list_are_words_like_others(tmp_path):
    length = len(DEGREES)
    words = [(DEGREES[i], FANS[i % len(FANS)], REGISTERED[i % len(REGISTERED)]) for i in range(length)]
    names = ("user_active_degree", "fans_user_num_range", "register_days_range")
    lines = [user_line(i, **dict(zip(names, each, strict=True))) for i, each in enumerate(words)]
    oracle.write_users(tmp_path, lines)
    oracle.write_log(tmp_path, [event(i, time_ms=NOON + i) for i in range(length)])
    dataset = open_pure(tmp_path)
    batch = whole(dataset)
    for place, name in enumerate(names):
        assert ids_of(batch, name) == [[word_id(each[place])] for each in words]
        assert len({word_id(each[place]) for each in words}) == len({each[place] for each in words})
    assert dataset.manifest["rejected_in_tables"] == {}


def test_unknown_is_a_word_and_no_missing_value(tmp_path):
    oracle.write_videos(tmp_path, [VIDEO.format(i).replace("NORMAL", w) for i, w in enumerate(["UNKNOWN", "AD", ""])])
    oracle.write_log(tmp_path, [event(video=i, time_ms=NOON + i) for i in range(3)])
    assert ids_of(whole(open_pure(tmp_path)), "video_type") == [[word_id("UNKNOWN")], [word_id("AD")], []]


def test_columns_that_nan_made_floats_hold_whole_numbers(tmp_path):
    """Seven columns of the user table are written as floats because some of their values are missing."""
    names = ("onehot_feat4", *ONEHOTS[12:])
    lines = [user_line(i, **dict.fromkeys(names, text)) for i, text in enumerate(["1.0", "1", "", "NaN", "0.0"])]
    oracle.write_users(tmp_path, lines)
    oracle.write_log(tmp_path, [event(i, time_ms=NOON + i) for i in range(5)])
    batch = whole(open_pure(tmp_path))
    assert [ids_of(batch, name) for name in names] == [[[1], [1], [], [], [0]]] * 7


def test_live_streamers_are_one_or_missing_never_zero(tmp_path):
    """-124 stands where a 0 would: missing it stays, and no id -124 comes into a table of embeddings."""
    oracle.write_users(tmp_path, [USER.format(0), user_line(1, is_live_streamer="1")])
    oracle.write_log(tmp_path, [event(i, time_ms=NOON + i) for i in range(2)])
    batch = whole(open_pure(tmp_path))
    assert ids_of(batch, "is_live_streamer") == [[], [1]]
    assert -124 not in batch.ids.tolist()


def test_the_sentinel_in_the_log_is_a_number(opened):
    """Only the feature tables write -124 for what is missing."""
    dataset = opened([event(-124, -124)])
    assert ids_of(whole(dataset), "user_id") == ids_of(whole(dataset), "video_id") == [[-124]]


def test_columns_that_say_nothing_or_of_the_future_are_no_features():
    """visible_status and is_lowactive_period are 0 throughout; stays and plays are known only after the sample."""
    later = {"play_time_ms", "profile_stay_time", "comment_stay_time", "long_view", "is_click", "date", "hourmin"}
    assert not {"visible_status", "is_lowactive_period", *later} & {*FEATURES, *DENSE_NAMES}


def test_tags_in_quotes_one_and_none(tmp_path):
    tags = ['"12,65"', "39", "", '"12,12"']
    oracle.write_videos(tmp_path, [VIDEO.format(i).replace('"12,65"', tag) for i, tag in enumerate(tags)])
    oracle.write_log(tmp_path, [event(video=i, time_ms=NOON + i) for i in range(4)])
    made = ids_of(whole(open_pure(tmp_path)), "tag")
    assert made == [[word_id("12"), word_id("65")], [word_id("39")], [], [word_id("12")] * 2]


def test_ids_of_64_bits_stay_what_they_are(opened):
    """Music ids are beyond 32 bits; nothing on the way may be narrower, nor turn an id into a float."""
    numbers = [2**31, 2**33 + 7, 2**53 + 1, 2**63 - 1, -(2**63)]
    firsts = [event(number, number, NOON - 20 + i) for i, number in enumerate(numbers)]
    dataset = opened([*firsts, *[event(number, 1, NOON - 1) for number in numbers], *LEARNT])
    batch = whole(dataset, history=2)
    assert ids_of(batch, "user_id")[:10] == [[number] for number in numbers] * 2
    assert ids_of(batch, "hist_video_id")[5:10] == [[number] for number in numbers]
    assert sorted(last_events(dataset)) == sorted(([number], 1) for number in numbers)


def test_gaps_beyond_32_bits_of_milliseconds(opened):
    """A month is 2.6e9 ms, and a user's next event in Pure comes hours or weeks later: the log is thinned."""
    dataset = opened([event(time_ms=NOON), event(time_ms=NOON + 29 * DAY)])
    assert 29 * DAY > 2**31
    assert ids_of(whole(dataset, history=1), "hist_gap_ms") == [[], [29 * DAY]]


def test_time_is_a_whole_number_of_milliseconds_and_keeps_all_of_them(opened):
    """A float32 of 1.65e12 ms is two minutes coarse: two events of a user a millisecond apart stay apart."""
    dataset = opened([event(video=1, time_ms=NOON + 1), event(video=2, time_ms=NOON)])
    assert dataset.table.schema.field("time_ms").type == pa.int64()
    assert column(dataset, "video_id") == [2, 1]
    assert ids_of(whole(dataset, history=1), "hist_gap_ms") == [[], [1]]


def test_copies_within_one_history_are_kept_or_not_as_told(opened):
    """2 % of the rows are copies: a target right after its twin only where both the rows and the events are kept."""
    rows = [event(1, 5), event(1, 6, NOON + 1), event(1, 6, NOON + 1), *LEARNT]
    assert last_events(opened(rows, duplicates="keep"), copies=True) == [([5, 6], 6)]
    assert last_events(opened(rows, duplicates="keep")) == [([5], 6)]
    assert last_events(opened(rows, duplicates="drop"), copies=True) == [([5], 6)]


def test_events_of_one_millisecond_never_lie_on_both_sides_of_a_border(opened):
    """3 % of a user's neighbouring rows share their time; a split by time must not cut between them."""
    rows = [event(u, v, NOON + (v if v < 6 else 6)) for v in range(10) for u in range(2)]
    made = opened(rows).sequences(SequenceOptions(negatives=0, borders=(0.7, 0.9)))
    (batch,) = made.batches("train", 10)
    assert sorted(ids_of(batch, "target")) == [[1, 2, 3, 4, 5]] * 2
    assert made.samples("validation") == 0  # both borders fall into the same millisecond
    assert made.targets("heldout").tolist() == [6, 6]


def test_the_same_rows_are_another_data_set_under_1k_s_numbering(tmp_path):
    """User 7 of Pure is user 7 of 27K, but another one in 1K: what is learnt from one is never taken for another."""
    infos = []
    for folder, file, name in (
        ("KuaiRand-Pure", oracle.LATE, "kuairand-pure"),
        ("KuaiRand-1K", "log_standard_4_22_to_5_08_1k.csv", "kuairand-1k"),
    ):
        oracle.write(tmp_path / folder / "data", file, [oracle.line(event(7, 1))], oracle.LOG)
        infos.append(data.open_dataset(name, tmp_path, prepared=tmp_path / "prepared").info)
    assert infos[0].fingerprint != infos[1].fingerprint and infos[0].id != infos[1].id


def test_the_tables_of_a_variant_are_its_own(tmp_path):
    """The same user has other features under 1K's numbering: a table beside the wrong log is not taken."""
    oracle.write_users(tmp_path, [USER.format(7)])
    oracle.write_videos(tmp_path, [VIDEO.format(5)])
    folder = tmp_path / "KuaiRand-1K" / "data"
    oracle.write(folder, "log_standard_4_22_to_5_08_1k.csv", [oracle.line(event(7, 5))], oracle.LOG)
    dataset = data.open_dataset("kuairand-1k", tmp_path, prepared=tmp_path / "prepared")
    assert dataset.info.counts["rows_without_user_features"] == 1
    assert set(K1.files[USERS] + K1.files[VIDEOS]) <= set(dataset.info.files["missing"])


def test_captions_and_categories_beside_the_data_change_nothing(tmp_path):
    """They are another record of another key (final_video_id); where a category is missing they write -124."""
    oracle.write_log(tmp_path, [event(video=5)])
    before = open_pure(tmp_path).info
    for name in ("kuairand_video_captions.csv", "kuairand_video_categories.csv"):
        oracle.write(tmp_path / "KuaiRand-Pure" / "data", name, ["5,-124,UNKNOWN"], "final_video_id,a,b")
    assert open_pure(tmp_path).info.fingerprint == before.fingerprint
