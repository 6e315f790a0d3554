"""The real rows of KuaiRand-Pure that lie beside the project, against a reader in plain Python."""

import kuairand_oracle as oracle
import pytest
from test_kuairand_histories import made_histories
from test_kuairand_log import ids_of

import nestlab.data as data
from nestlab.data.kuairand_tables import word_id

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def folder(real_data):
    return real_data / "KuaiRand-Pure" / "data"


@pytest.fixture(scope="module")
def dataset(real_data, tmp_path_factory):
    return data.open_dataset("kuairand-pure", real_data, prepared=tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def rows(folder):
    return oracle.read_log(folder / oracle.EARLY, folder / oracle.LATE)


def test_every_row_is_accounted_for(dataset, rows):
    counts = dataset.info.counts
    assert (counts["rows_in"], counts["rows_out"]) == (229_329, 229_329)
    assert (counts["rows_rejected"], counts["rows_dropped"]) == (0, 0)
    assert (counts["rows_without_user_features"], counts["rows_without_video_features"]) == (0, 0)
    assert counts["users"] == len({row["user_id"] for row in rows})
    assert counts["videos"] == len({row["video_id"] for row in rows})
    for name in oracle.NAMES:
        assert dataset.table.column(name).to_pylist() == [row[name] for row in rows], name


def test_copies_are_those_of_the_second_file(dataset, folder):
    found = {entry["name"]: entry["duplicates"] for entry in dataset.manifest["inputs"]}
    assert (found[oracle.EARLY], found[oracle.LATE]) == (10, 5460)
    lines = (folder / oracle.LATE).read_text().splitlines()
    assert len(lines) - len(set(lines)) == 5460


def test_the_files_that_are_missing_are_named(dataset, real_data):
    missing = ["log_random_4_22_to_5_08_pure.csv", "video_features_statistic_pure.csv"]
    assert dataset.info.files["missing"] == missing
    assert len(dataset.info.files["found"]) == 4
    assert dataset.info.title == f"KuaiRand-Pure (real, 229,329 of 1,436,609 rows; without {missing[0]})"
    (found,) = [record for record in data.available(real_data) if record.name == "kuairand-pure"]
    assert found.found
    assert all(name in found.detail for name in (*missing, oracle.EARLY, oracle.LATE))
    assert data.open_dataset("kuairand", real_data, prepared=dataset.prepared.folder.parent).info.id == "kuairand-pure"


def test_histories_of_real_users(dataset, rows):
    longest = max(dataset.table.column("seen").to_pylist())
    for history in (20, longest):
        batches = dataset.batches("heldout", 5_000, history=history, limit=1)
        (batch,) = batches
        first = dataset.rows("heldout")[0]
        users = {row["user_id"] for row in rows[first : first + 5_000]}
        mine = [(i, row) for i, row in enumerate(rows[: first + 5_000]) if row["user_id"] in users]
        expected = oracle.histories([row for _, row in mine], history)
        assert made_histories(batch) == [h for (i, _), h in zip(mine, expected, strict=True) if i >= first]


def test_features_of_real_rows(dataset, rows, folder):
    users = {int(r["user_id"]): r for r in oracle.read_table(folder / "user_features_pure.csv")}
    videos = {int(r["video_id"]): r for r in oracle.read_table(folder / "video_features_basic_pure.csv")}
    (batch,) = dataset.batches("train", 2_000, limit=1)

    def one(value):
        return [] if value is None else [value]

    for name in dataset.features:
        expected = []
        for row in rows[:2_000]:
            if name == "hour":
                expected.append([(row["time_ms"] // 3_600_000 + 8) % 24])
            elif name in row:
                expected.append([row[name]])
            else:
                source = users[row["user_id"]] if name in users[0] else videos[row["video_id"]]
                text = source[name]
                if name == "tag":
                    expected.append([word_id(tag) for tag in text.split(",")] if text else [])
                elif name.endswith(("_range", "_degree", "video_type", "upload_type")):
                    expected.append([word_id(text)])
                else:
                    expected.append(one(oracle.whole(text)))
        assert ids_of(batch, name) == expected, name


def test_published_rates_and_oddities(dataset):
    frames = dataset.describe(1_000_000)
    time, plays = frames["time"].loc[0], frames["plays"].loc[0]
    assert time["hourmin_ahead"] == pytest.approx(0.175, abs=0.002)
    assert time["date_differs"] == pytest.approx(0.009, abs=0.001)
    assert plays["play_beyond_duration"] == pytest.approx(0.139, abs=0.003)
    rates = frames["labels"].set_index("label")["rate"]
    assert rates["is_click"] == pytest.approx(0.4419, abs=0.001)
    assert rates["long_view"] == pytest.approx(0.3108, abs=0.001)
    tabs = frames["tabs"].set_index("tab")["click_rate"]
    assert [tabs[tab] for tab in (0, 1, 4)] == pytest.approx([0.086, 0.494, 0.596], abs=0.001)
    columns = frames["categorical"].set_index("column")
    assert columns.loc["is_live_streamer", "unique"] == 1
    assert columns.loc["onehot_feat12", "missing"] > 0.01


def test_the_first_rows_only(real_data, tmp_path, rows, folder):
    dataset = data.open_dataset("kuairand-pure", real_data, rows=1_500, prepared=tmp_path)
    counts = {entry["name"]: entry["rows_in"] for entry in dataset.manifest["inputs"]}
    assert (counts[oracle.EARLY], counts[oracle.LATE], dataset.info.rows) == (1000, 500, 1500)
    first = data.open_dataset("kuairand-pure", real_data, rows=1_000, prepared=tmp_path)
    assert [e["name"] for e in first.manifest["inputs"] if e["role"] == "standard"] == [oracle.EARLY]
