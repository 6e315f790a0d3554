"""Where KuaiRand's files are looked for, what is said of those that are not there, and what preparing guarantees."""

import shutil

import kuairand_oracle as oracle
import pytest
from kuairand_oracle import NOON, USER, event

import nestlab.data as data
from nestlab.errors import UserError

K27 = [
    *(f"log_standard_4_08_to_4_21_27k_part{i}.csv" for i in (1, 2)),
    *(f"log_standard_4_22_to_5_08_27k_part{i}.csv" for i in (1, 2)),
]


def opened(root, name="kuairand", **options):
    return data.open_dataset(name, root, prepared=root / "prepared", options=data.KuaiRandOptions(**options))


def videos_of(dataset):
    return dataset.table.column("video_id").to_pylist()


@pytest.mark.parametrize("below", ["KuaiRand-Pure/data", "KuaiRand-Pure", "data", "."])
def test_the_folder_may_be_any_of_four(tmp_path, below):
    oracle.write(tmp_path / below, oracle.LATE, [oracle.line(event(video=5))], oracle.LOG)
    assert videos_of(opened(tmp_path, "kuairand-pure")) == [5]


def test_a_root_that_is_the_archive_s_own_folder(tmp_path):
    oracle.write_log(tmp_path, [event(video=5)])
    for root in (tmp_path / "KuaiRand-Pure", tmp_path / "KuaiRand-Pure" / "data"):
        dataset = data.open_dataset("kuairand-pure", root, prepared=tmp_path / "prepared")
        assert videos_of(dataset) == [5]


def test_kuairand_takes_pure_then_1k_then_27k_then_the_twin(tmp_path):
    twin = data.open_dataset("kuairand", tmp_path, rows=200, prepared=tmp_path / "prepared").info
    assert (twin.id, twin.kind) == ("kuairand-synth", "synthetic")
    for folder, file, name in (
        ("KuaiRand-27K", K27[0], "kuairand-27k"),
        ("KuaiRand-1K", "log_standard_4_22_to_5_08_1k.csv", "kuairand-1k"),
        ("KuaiRand-Pure", oracle.LATE, "kuairand-pure"),
    ):
        oracle.write(tmp_path / folder / "data", file, [oracle.line(event())], oracle.LOG)
        assert opened(tmp_path).info.id == name


def test_the_parts_of_27k_in_order(tmp_path):
    folder = tmp_path / "KuaiRand-27K" / "data"
    for i, name in enumerate(K27):
        oracle.write(folder, name, [oracle.line(event(video=i))], oracle.LOG)
    dataset = opened(tmp_path, "kuairand-27k")
    assert videos_of(dataset) == [0, 1, 2, 3]
    assert dataset.info.title.startswith("KuaiRand-27K (real, 4 of 322,278,385 rows; without log_random")
    assert [f"video_features_statistic_27k_part{i}.csv" in dataset.info.files["missing"] for i in (1, 2, 3)] == [
        True
    ] * 3
    (folder / K27[1]).unlink()
    partial = opened(tmp_path, "kuairand-27k")
    assert videos_of(partial) == [0, 2, 3]
    assert K27[1] in partial.info.files["missing"]
    assert K27[1] in partial.info.title


def test_the_random_log_is_read_only_when_asked_for(tmp_path):
    oracle.write_log(tmp_path, [event(video=1, time_ms=NOON + 5)])
    oracle.write_log(tmp_path, [event(video=2, is_rand=1), event(video=3, time_ms=NOON + 5, is_rand=1)], oracle.RANDOM)
    assert videos_of(opened(tmp_path)) == [1]
    assert opened(tmp_path).info.files["unused"] == [oracle.RANDOM]
    assert videos_of(opened(tmp_path, logs="random")) == [2, 3]
    both = opened(tmp_path, logs="both")
    assert videos_of(both) == [2, 1, 3]
    assert both.describe(9)["plays"].loc[0, "at_random"] == pytest.approx(2 / 3)
    assert len({opened(tmp_path, logs=logs).info.fingerprint for logs in ("standard", "random", "both")}) == 3
    (tmp_path / "KuaiRand-Pure" / "data" / oracle.LATE).unlink()
    with pytest.raises(UserError, match=r"no standard log there \(.*\), only log_random.*; choose logs=random"):
        opened(tmp_path, "kuairand-pure")


def test_a_random_log_that_is_not_there_is_named(tmp_path):
    oracle.write_log(tmp_path, [event()])
    with pytest.raises(UserError, match=rf"missing: {oracle.RANDOM}\), only {oracle.LATE}; choose logs=standard"):
        opened(tmp_path, logs="random")


def test_the_statistic_file_is_never_read(tmp_path):
    oracle.write_log(tmp_path, [event()])
    oracle.write(tmp_path / "KuaiRand-Pure" / "data", "video_features_statistic_pure.csv", ["anything"], "at all")
    info = opened(tmp_path).info
    assert info.files["unused"] == ["video_features_statistic_pure.csv"]
    assert not any("statistic" in name for name in info.files["found"])


@pytest.mark.parametrize(
    ("name", "twin"),
    [("kuairand-pure", "kuairand-synth"), ("kuairand-1k", "kuairand-synth"), ("kuairand-27k", "kuairand-27k-synth")],
)
def test_absent_data_is_one_line_with_the_remedy_and_the_own_twin(tmp_path, name, twin):
    oracle.write_users(tmp_path, [USER.format(1)])  # a feature table alone is no data set
    with pytest.raises(UserError) as error:
        opened(tmp_path, name)
    text = str(error.value)
    assert "\n" not in text
    for word in (name, str(tmp_path), "10439422", f"or use {twin}, "):
        assert word in text


def test_options_and_the_file_option(tmp_path):
    for bad in ({"duplicates": "merge"}, {"logs": "all"}, {"block_bytes": 0}):
        with pytest.raises(UserError):
            data.KuaiRandOptions(**bad)
    path = oracle.write_log(tmp_path, [event(video=5)])
    oracle.write_users(tmp_path, [USER.format(0)])
    other = shutil.move(path, tmp_path / "KuaiRand-Pure" / "data" / "mine.csv")
    dataset = data.open_dataset("kuairand-pure", tmp_path, file=other, prepared=tmp_path / "prepared")
    assert videos_of(dataset) == [5]
    assert dataset.info.files["found"] == ["mine.csv", "user_features_pure.csv"]
    assert dataset.info.counts["rows_without_user_features"] == 0


def test_plain_options_are_taken_and_mean_the_defaults(tmp_path):
    oracle.write_log(tmp_path, [event()])
    plain = data.open_dataset("kuairand", tmp_path, prepared=tmp_path / "prepared", options=data.PrepareOptions())
    assert plain.info.fingerprint == opened(tmp_path).info.fingerprint


def test_a_change_in_a_feature_table_prepares_again_and_damage_is_repaired(tmp_path):
    oracle.write_log(tmp_path, [event()])
    oracle.write_users(tmp_path, [USER.format(0)])
    first = opened(tmp_path)
    oracle.write_users(tmp_path, [USER.format(0).replace("514", "515")])
    second = opened(tmp_path)
    assert second.info.fingerprint != first.info.fingerprint
    for name in ("users/user_id.values", "events_time_ms.npy", "log/is_click.values"):
        path = second.prepared.folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        again = opened(tmp_path)
        assert (again.prepared.folder / name).read_bytes() == content
    assert not list((tmp_path / "prepared").glob(".tmp-*"))
    assert not list((tmp_path / "prepared").rglob("*.spool"))
    assert not list((tmp_path / "prepared").rglob("*.pkl"))
