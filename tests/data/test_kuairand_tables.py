"""KuaiRand's feature tables: missing values, words, tags, broken rows; and the join by position."""

from dataclasses import dataclass

import kuairand_oracle as oracle
import pyarrow as pa
import pytest
from kuairand_oracle import NOON, USER, event
from test_kuairand_log import ids_of, whole

import nestlab.data as data
from nestlab.data.columns import open_columns
from nestlab.data.kuairand_tables import USER_TABLE, VIDEO_TABLE, word_id
from nestlab.data.table_reading import FeatureTable, read_table
from nestlab.errors import UserError

VIDEO = '{},77,NORMAL,2022-04-10,Web,0.0,358016.0,960.0,720.0,9148581891,9.0,"12,65"'


@dataclass
class Read:
    """What was read, the rows themselves, and the rejects."""

    said: FeatureTable
    table: pa.Table
    rejects: list


def read(path, form, folder, block_bytes=1 << 20):
    rejects = []
    folder.mkdir(parents=True, exist_ok=True)
    said = read_table(path, form, folder / form.what, block_bytes, rejects.extend)
    table = open_columns(folder / form.what)
    assert (said.rows, said.rejected) == (table.num_rows, len(rejects))
    return Read(said, table, rejects)


def video_table(tmp_path, *lines, block_bytes=1 << 20):
    return read(oracle.write_videos(tmp_path, lines), VIDEO_TABLE, tmp_path / "made", block_bytes)


def open_pure(root, **options):
    chosen = data.KuaiRandOptions(**options)
    return data.open_dataset("kuairand-pure", root, prepared=root / "prepared", options=chosen)


@pytest.mark.core
def test_a_word_s_id_is_the_same_for_ever():
    assert word_id("NORMAL") == 1621893802101890907
    ids = [word_id(word) for word in ("", "12", "65", "UNKNOWN", "(0,10]", "é")]
    assert len(set(ids)) == 6
    assert all(0 <= i < 2**63 for i in ids)


@pytest.mark.core
def test_a_video_s_row(tmp_path):
    (row,) = video_table(tmp_path, VIDEO.format(5)).table.to_pylist()
    words = {name: word_id(text) for name, text in (("video_type", "NORMAL"), ("upload_type", "Web"))}
    assert row == {
        "video_id": 5,
        "author_id": 77,
        "upload_dt": 20220410,
        "visible_status": 0,
        "video_duration": 358016,
        "server_width": 960,
        "server_height": 720,
        "music_id": 9148581891,
        "music_type": 9,
        "tag": [word_id("12"), word_id("65")],
        **words,
    }


@pytest.mark.parametrize("missing", ["", "NaN", "nan", "-124", "-124.0"])
def test_nothing_nan_and_the_sentinel_are_missing(tmp_path, missing):
    got = video_table(tmp_path, f"5,77,{missing},{missing},Web,0,{missing},960,720,3,{missing},{missing}")
    (row,) = got.table.to_pylist()
    assert [name for name, value in row.items() if value is None] == [
        *("video_type", "upload_dt", "video_duration", "music_type", "tag")
    ]
    assert got.rejects == []


def test_the_sentinel_of_live_streamers(tmp_path):
    path = oracle.write_users(tmp_path, [USER.format(3), USER.format(4).replace("-124", "1")])
    table = read(path, USER_TABLE, tmp_path).table
    assert table.column("is_live_streamer").to_pylist() == [None, 1]


def test_words_never_seen_before_are_taken_and_counted(tmp_path):
    lines = [VIDEO.format(i).replace("NORMAL", w) for i, w in enumerate(["AD", "brand, new", "AD"])]
    lines[1] = lines[1].replace("brand, new", '"brand, new"')
    got = video_table(tmp_path, *lines)
    assert got.table.column("video_type").to_pylist() == [word_id(w) for w in ("AD", "brand, new", "AD")]
    assert got.said.words["video_type"] == {"AD": 2, "brand, new": 1}
    assert got.said.words["tag"] == {"12": 3, "65": 3}


@pytest.mark.parametrize("block_bytes", [30, 200, 1 << 20])
def test_broken_rows_are_set_aside_by_reason(tmp_path, block_bytes):
    good = VIDEO.format(1)
    lines = [
        good,
        VIDEO.format(2).replace('"', ""),  # a tag with a comma that lost its quotes
        VIDEO.format("x"),
        VIDEO.format(""),
        VIDEO.format(3).replace("358016.0", "358016.5"),
        VIDEO.format(4).replace("2022-04-10", "10 April"),
        VIDEO.format(5).replace("12,65", "12,,65"),
        good.replace("77", "78"),
        VIDEO.format(6).replace('65"', "65"),
        VIDEO.format(7),
    ]
    got = video_table(tmp_path, *lines, block_bytes=block_bytes)
    assert got.table.column("video_id").to_pylist() == [1, 7]
    assert got.table.column("author_id").to_pylist() == [77, 77]
    assert got.said.rows_in == 10 == got.table.num_rows + len(got.rejects)
    assert {(r.line, r.reason) for r in got.rejects} == {
        (3, "not 12 fields"),
        (4, "not an integer"),
        (5, "no key"),
        (6, "not a whole number"),
        (7, "not a date"),
        (8, "not a list of words"),
        (9, "repeated key"),
        (10, "bad quoting"),
    }
    assert got.said.words["video_type"] == {"NORMAL": 3}  # the repeated row was read before it was set aside


def test_a_table_none_of_whose_rows_can_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none of its 2 rows can be read .line 2: not 12 fields"):
        video_table(tmp_path, "1,2", "3,4")
    assert video_table(tmp_path / "empty").table.num_rows == 0


def test_another_header_is_refused(tmp_path):
    path = oracle.write_videos(tmp_path, [VIDEO.format(1)])
    path.write_text(path.read_text().replace("music_type,", ""))
    with pytest.raises(UserError, match="not a KuaiRand video feature table") as error:
        read(path, VIDEO_TABLE, tmp_path / "made")
    assert "\n" not in str(error.value)
    assert "column 11 is 'tag' instead of 'music_type'" in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header: header + ",extra", "column 13, 'extra', is one too many"),
        (lambda header: header.removesuffix(",tag"), "column 12, 'tag', is missing"),
        (lambda header: header + " ", "column 12 is 'tag ' instead of 'tag'"),
    ],
)
def test_the_first_column_that_differs_is_named(tmp_path, change, said):
    path = oracle.write(tmp_path, "videos.csv", [], change(oracle.VIDEOS))
    with pytest.raises(UserError) as error:
        read(path, VIDEO_TABLE, tmp_path / "made")
    assert said in str(error.value)


def test_users_and_videos_without_features_are_kept_counted_and_missing(tmp_path):
    oracle.write_users(tmp_path, [USER.format(9), USER.format(3).replace("full_active", "day_new")])
    oracle.write_videos(tmp_path, [VIDEO.format(8)])
    oracle.write_log(tmp_path, [event(u, v, NOON + i) for i, (u, v) in enumerate([(3, 8), (4, 8), (9, 7), (4, 6)])])
    dataset = open_pure(tmp_path)
    assert dataset.table.column("user_position").to_pylist() == [1, -1, 0, -1]
    assert dataset.table.column("video_position").to_pylist() == [0, 0, -1, -1]
    counts = dataset.info.counts
    assert (counts["rows_without_user_features"], counts["rows_without_video_features"]) == (2, 2)
    assert (counts["users"], counts["videos"]) == (3, 3)
    batch = whole(dataset)
    assert ids_of(batch, "user_id") == [[3], [4], [9], [4]]
    assert ids_of(batch, "user_active_degree") == [[word_id("day_new")], [], [word_id("full_active")], []]
    assert ids_of(batch, "tag") == [[word_id("12"), word_id("65")]] * 2 + [[], []]
    assert ids_of(batch, "onehot_feat4") == [[1], [], [1], []]
    assert ids_of(batch, "author_id") == [[77], [77], [], []]
    assert batch.dense[1, 1:5].tolist() == [0, 0, 0, 0]


def test_without_any_feature_table(tmp_path):
    oracle.write_log(tmp_path, [event(), event(1, 1)])
    dataset = open_pure(tmp_path)
    assert dataset.info.counts["rows_without_user_features"] == 2
    batch = whole(dataset, history=3)
    assert ids_of(batch, "author_id") == [[], []]
    assert dataset.info.title == (
        "KuaiRand-Pure (real, 2 of 1,436,609 rows; without log_standard_4_08_to_4_21_pure.csv, "
        "log_random_4_22_to_5_08_pure.csv, user_features_pure.csv, video_features_basic_pure.csv)"
    )
    assert dataset.describe(10)["categorical"].set_index("column").loc["tag", "missing"] == 1


def test_the_join_is_made_from_memory_maps(tmp_path):
    """Nothing of the feature tables is copied on opening: 32 million videos would not bear it."""
    oracle.write_videos(tmp_path, [VIDEO.format(i) for i in range(50_000)])
    oracle.write_log(tmp_path, [event()])
    dataset = open_pure(tmp_path)
    before = pa.total_allocated_bytes()
    videos = dataset.joiner.videos
    assert videos.num_rows == 50_000
    assert videos.column("tag").num_chunks == 1
    assert pa.total_allocated_bytes() - before < 100_000
