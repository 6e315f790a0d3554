"""KuaiRand's log: every quirk of the real files, on a handful of made rows."""

import kuairand_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kuairand_oracle import NOON, event

import nestlab.data as data
from nestlab.data.kuairand_format import COLUMNS, SCHEMA, parse_block, parse_line, parse_text, row_hashes
from nestlab.data.rejects import BrokenLine
from nestlab.errors import UserError

HOUR = 3_600_000


@pytest.fixture
def opened(tmp_path):
    def open_rows(rows, name=oracle.LATE, **options):
        oracle.write_log(tmp_path, rows, name)
        chosen = data.KuaiRandOptions(**options)
        return data.open_dataset("kuairand-pure", tmp_path, prepared=tmp_path / "prepared", options=chosen)

    return open_rows


def column(dataset, name):
    return dataset.table.column(name).to_pylist()


def ids_of(batch, feature):
    """[[ids of sample 0], …]"""
    place = batch.features.index(feature)
    offsets = batch.offsets().tolist()
    runs = range(place * batch.size, (place + 1) * batch.size)
    return [batch.ids[offsets[i] : offsets[i + 1]].tolist() for i in runs]


def whole(dataset, **options):
    (batch,) = dataset.batches("all", 1000, **options)
    return batch


def test_an_hourmin_that_runs_ahead_moves_nothing(opened):
    """hourmin is an hour ahead of time_ms in a sixth of the rows: order and hour come from time_ms alone."""
    rows = [event(video=1, time_ms=NOON + 1, hourmin=1300), event(video=2, time_ms=NOON + 2, hourmin=1200)]
    dataset = opened(rows)
    assert column(dataset, "video_id") == [1, 2]
    assert column(dataset, "hourmin") == [1300, 1200]
    assert ids_of(whole(dataset), "hour") == [[12], [12]]
    assert dataset.describe(10)["time"].loc[0, "hourmin_ahead"] == 0.5


def test_a_date_that_is_wrong_around_midnight_moves_nothing(opened):
    before_midnight = NOON + 12 * HOUR - 60_000
    rows = [
        event(video=1, time_ms=before_midnight, date=20220424, hourmin=0),
        event(video=2, time_ms=before_midnight + 1, date=20220423, hourmin=2300),
        event(video=3, time_ms=before_midnight + 60_000, date=20220424, hourmin=0),
    ]
    dataset = opened(rows[::-1])
    assert column(dataset, "video_id") == [1, 2, 3]
    assert ids_of(whole(dataset), "hour") == [[23], [23], [0]]
    described = dataset.describe(10)["time"].loc[0]
    assert described["date_differs"] == pytest.approx(1 / 3)
    assert str(described["first (Beijing)"]) == "2022-04-23 23:59:00"


def test_hourmin_without_leading_zeros_is_read(opened):
    rows = [event(hourmin=text) for text in ("0", "100", "2300")]
    assert column(opened(rows), "hourmin") == [0, 100, 2300]


@pytest.mark.parametrize("option", ["keep", "drop"])
def test_exact_copies_are_counted_and_kept_or_dropped(opened, option):
    a, b = event(video=1), event(video=2, time_ms=NOON + 5)
    dataset = opened([a, b, a, a, b, event(video=3, time_ms=NOON + 9)], duplicates=option)
    kept = {"keep": [1, 1, 1, 2, 2, 3], "drop": [1, 2, 3]}[option]
    assert column(dataset, "video_id") == kept
    counts = dataset.info.counts
    assert (counts["rows_in"], counts["rows_duplicate"]) == (6, 3)
    assert counts["rows_in"] == counts["rows_out"] + counts["rows_dropped"] + counts["rows_rejected"]
    assert column(dataset, "seen") == list(range(len(kept)))


def test_copies_are_found_across_files_and_told_by_file(tmp_path, opened):
    a, b = event(video=1), event(video=2)
    oracle.write_log(tmp_path, [a, b, b], oracle.EARLY)
    dataset = opened([b, a, event(video=3)])
    by_file = {entry["name"]: entry["duplicates"] for entry in dataset.manifest["inputs"]}
    assert by_file == {oracle.EARLY: 1, oracle.LATE: 2}


def test_the_same_moment_with_other_labels_is_no_copy(opened):
    rows = [event(is_click=0), event(is_click=1), event(is_click=1, is_like=1)]
    dataset = opened(rows, duplicates="drop")
    assert dataset.info.counts["rows_duplicate"] == 0
    assert column(dataset, "is_click") == [0, 1, 1]


def test_rows_of_one_millisecond_keep_the_order_of_the_files(tmp_path, opened):
    oracle.write_log(tmp_path, [event(video=v) for v in (5, 1)], oracle.EARLY)
    dataset = opened([event(video=v, time_ms=NOON + t) for v, t in ((9, 0), (2, -1), (7, 0), (3, 1))])
    assert column(dataset, "video_id") == [2, 5, 1, 9, 7, 3]
    history = ids_of(whole(dataset, history=10), "hist_video_id")
    assert history[-1] == [2, 5, 1, 9, 7]
    assert history[1] == history[-2] == [2]


def test_duration_zero_is_a_missing_duration(opened):
    batch = whole(opened([event(duration_ms=0, play_time_ms=9), event(duration_ms=60_000, time_ms=NOON + 1)]))
    np.testing.assert_allclose(batch.dense[:, 0], [0.0, np.log1p(60.0)], rtol=1e-6)
    assert np.isfinite(batch.dense.numpy()).all()


def test_no_play_much_play_and_likes_without_play_are_kept(opened):
    rows = [
        event(play_time_ms=0, is_like=1, tab=0),
        event(play_time_ms=90_000, duration_ms=1_000, time_ms=NOON + 1, is_click=1),
    ]
    dataset = opened(rows)
    assert dataset.info.rows == 2
    plays = dataset.describe(10)["plays"].loc[0]
    assert (plays["zero_play"], plays["play_beyond_duration"], plays["watch_ratio_max"]) == (0.5, 0.5, 90)
    assert whole(dataset, label="is_like").labels.tolist() == [1, 0]


def test_a_log_of_durations_zero_is_described(opened):
    assert opened([event(duration_ms=0)]).describe(10)["plays"].loc[0, "watch_ratio_max"] == 0


def test_any_tab_is_taken(opened):
    tabs = [0, 14, 15, -1, 2**40]
    dataset = opened([event(tab=tab, time_ms=NOON + i) for i, tab in enumerate(tabs)])
    assert ids_of(whole(dataset), "tab") == [[tab] for tab in tabs]


def test_stay_times_at_their_cap_and_beyond_are_kept_as_they_are(opened):
    dataset = opened([event(profile_stay_time=s, is_profile_enter=1) for s in (0, 300_000, 2**40)])
    assert column(dataset, "profile_stay_time") == [0, 300_000, 2**40]
    assert "profile_stay_time" not in dataset.features


def test_labels_by_name(opened):
    dataset = opened([event(long_view=1), event(is_click=1, time_ms=NOON + 1)])
    assert whole(dataset).labels.tolist() == [0, 1]
    assert whole(dataset, label="long_view").labels.tolist() == [1, 0]
    for bad in ({"label": "is_rand"}, {"label": "tab"}, {"history": -1}):
        with pytest.raises(UserError):
            dataset.batches("all", 8, **bad)


def test_broken_lines_are_set_aside_and_every_line_is_accounted_for(opened):
    good = oracle.line(event())
    bad = ["", good + ",1", good.rpartition(",")[0], good.replace("2000", "x"), good.replace("2000", "2.0")]
    bad += [good.replace("1200", "9" * 30), oracle.line(event(is_click=2)), "NaN" + good[1:]]
    dataset = opened([good, *bad, oracle.line(event(video=4, time_ms=NOON + 1))])
    manifest = dataset.manifest
    assert (manifest["rows_in"], manifest["rows_out"], manifest["rows_rejected"]) == (10, 2, 8)
    assert manifest["rejected"] == {
        "empty line": 1,
        "flag not 0 or 1": 1,
        "integer out of range": 1,
        "not 19 fields": 2,
        "not an integer": 3,
    }
    kept = (dataset.prepared.folder / "rejects.tsv").read_text().splitlines()
    assert kept[0] == f"{oracle.LATE}\t3\tempty line\t\t"
    assert kept[3] == f"{oracle.LATE}\t6\tnot an integer\tplay_time_ms\t{bad[3]}"


def test_a_log_of_another_format_and_one_without_rows_are_refused(tmp_path, opened):
    with pytest.raises(UserError, match="no rows to prepare"):
        opened([])
    with pytest.raises(UserError, match=r"no rows to prepare .* line 2: not 19 fields"):
        opened(["1,2,3"])
    path = oracle.write_log(tmp_path, [event()])
    path.write_text(path.read_text().replace("time_ms", "timestamp", 1))
    with pytest.raises(UserError, match="header of 19 columns") as error:
        data.open_dataset("kuairand-pure", tmp_path, prepared=tmp_path / "prepared")
    assert "\n" not in str(error.value)


field = st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.sampled_from(["", "x", "1.0", " 1", "+1", "9" * 20]))
row = st.builds(lambda base, at, text: (base, at, text), st.integers(0, 1), st.integers(0, 18), field)


@pytest.mark.core
@given(st.lists(row, max_size=12))
@settings(max_examples=120, deadline=None)
def test_both_readers_agree(rows):
    lines = []
    for base, at, text in rows:
        fields = oracle.line(event(is_click=base)).split(",")
        fields[at] = text
        lines.append(",".join(fields).encode())
    good, broken = [], []
    for i, text in enumerate(lines):
        try:
            good.append(parse_line(text))
        except BrokenLine as error:
            broken.append((i + 7, error.reason, error.column))
    table, rejects = parse_block(lines, 7)
    assert table.schema == SCHEMA
    assert [list(r.values()) for r in table.to_pylist()] == good
    assert [(r.line, r.reason, r.column) for r in rejects] == broken


@pytest.mark.core
def test_action_bits_and_row_hashes():
    rows = [event(**{name: 1}) for name in oracle.ACTIONS] + [event(), event(is_rand=1)]
    made = read(rows)
    assert (made.flags & 0xFF).tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 0, 0]
    assert len(set(row_hashes([*made.values, made.flags]).tolist())) == len(rows)
    changed = [event(**{name: 7}) for name in COLUMNS if not name.startswith(("is_", "long"))]
    made = read([*changed, *changed])
    hashes = row_hashes([*made.values, made.flags]).tolist()
    assert len(set(hashes)) == len(changed)
    assert hashes[: len(changed)] == hashes[len(changed) :]


def read(rows):
    return parse_text("".join(oracle.line(r) + "\n" for r in rows).encode(), len(rows))[0]
