"""Criteo under its published conventions, against plain Python; days as splits; a killed preparation."""

import gzip
import math

import criteo_oracle as oracle
import numpy as np
import pytest

import nestlab.data as data
from nestlab.cli import main
from nestlab.data.criteo_conventions import CONVENTIONS, MULTI_HOT, multi_hot
from nestlab.data.criteo_splits import splits_of
from nestlab.errors import UserError
from nestlab.techniques import Techniques
from nestlab.training.tables import tables_of


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Three days with few categories, so that some are frequent and some are rare."""
    root = tmp_path_factory.mktemp("days")
    rows = [row[:14] + [None if c is None else c % 7 for c in row[14:]] for row in oracle.made_rows(120)]
    # The smallest value is another one on every day.
    rows = [
        [row[0]] + [v if v is None else v % 1000 - 2 - 3 * (i // 40) for v in row[1:14]] + row[14:]
        for i, row in enumerate(rows)
    ]
    for day in range(3):
        oracle.write_file(root / "criteo-1tb" / f"day_{day}", rows[40 * day : 40 * (day + 1)])
    return root, rows


def opened(made, convention="dlrm-log1p", prepared=None, **more):
    options = data.CriteoOptions(convention=convention, **more)
    return data.open_dataset("criteo-1tb", made[0], prepared=prepared or made[0] / "prepared", options=options)


def numbers(rows, column, first, minimum, train=None):
    """By category (None: missing), in the order of appearance, those that are rare left out."""
    values = [row[column] for row in rows[:train]]
    often = [value for value in dict.fromkeys(values) if values.count(value) >= minimum]
    return {value: first + i for i, value in enumerate(often)}


def whole(dataset):
    (batch,) = dataset.batches("all", 1000)
    return batch


@pytest.mark.parametrize(("name", "first", "minimum", "train"), [("dlrm", 0, 1, None), ("criteo_x1", 1, 1, 96)])
def test_ids_in_the_order_of_appearance(days, name, first, minimum, train):
    """Broken on purpose: numbers by value."""
    dataset = opened(days, name)
    batch = whole(dataset)
    assert batch.lengths.unique().tolist() == [1]
    ids = batch.ids.numpy().reshape(26, 120)
    for f in range(26):
        known = numbers(days[1], 14 + f, first, minimum, train)
        assert ids[f].tolist() == [known.get(row[14 + f], 0) for row in days[1]]
    dense = [[math.log1p(max(v or 0, 0)) for v in row[1:14]] for row in days[1]]
    np.testing.assert_allclose(batch.dense.numpy(), dense, rtol=1e-6)


def test_mlperf_shifts_by_file_and_looks_up_many(days):
    """Broken on purpose: the smallest value of all files."""
    dataset = opened(days, "mlperf")
    rows, (batch,) = days[1], dataset.batches("all", 1000, shuffle=True, seed=1)
    order = np.random.default_rng([1, 0]).permutation(120)
    low = [[min(row[1 + d] or 0 for row in rows[40 * f : 40 * f + 40]) for d in range(13)] for f in range(3)]
    dense = [[math.log((rows[i][1 + d] or 0) - low[i // 40][d] + 2) for d in range(13)] for i in order]
    np.testing.assert_allclose(batch.dense.numpy(), dense, rtol=1e-6)
    assert batch.lengths.reshape(26, 120)[:, 0].tolist() == list(MULTI_HOT) and sum(MULTI_HOT) == 214
    start, others = 0, {}
    for f, count in enumerate(MULTI_HOT):
        ids = batch.ids[start : start + 120 * count].numpy().reshape(120, count)
        start += 120 * count
        known = numbers(rows, 14 + f, 2, 3)
        assert ids[:, 0].tolist() == [known.get(rows[i][14 + f], 1) for i in order]
        assert ids.min() >= 0 and ids.max() < dataset.sizes[f"C{f + 1}"]
        for row in ids.tolist():
            assert others.setdefault((f, row[0]), row) == row


def test_x4_has_bins_for_integers(days):
    """Broken on purpose: a missing integer taken for −1."""
    dataset = opened(days, "x4_001")
    batch = whole(dataset)
    assert batch.dense.shape == (120, 0) and len(batch.features) == 39

    def binned(v):
        return None if v is None else math.floor(math.log(v) ** 2) if v > 2 else v

    rows = [[row[0], *map(binned, row[1:14])] for row in days[1]]
    ids = batch.ids.numpy().reshape(39, 120)
    for d in range(13):
        known = numbers(rows, 1 + d, 1, 10, 96)
        assert ids[d].tolist() == [known.get(row[1 + d], 0) for row in rows]


def test_each_result_carries_its_convention_and_the_rows_serve_all(days):
    of = {name: opened(days, name) for name in CONVENTIONS}
    assert [d.info.convention.split()[0] for d in of.values()] == list(CONVENTIONS)
    assert len({d.info.convention for d in of.values()}) == len(CONVENTIONS)
    assert len({d.info.fingerprint for d in of.values()}) == 1
    assert "split by time" in of["x4_001"].info.convention
    with pytest.raises(UserError, match="dlrm-log1p"):
        of["dlrm"].reordered(None)
    with pytest.raises(UserError, match="choose one of dlrm-log1p"):
        data.CriteoOptions(convention="own")


@pytest.mark.parametrize(("name", "halves"), [("dlrm", ("test", "validation")), ("mlperf", ("validation", "test"))])
def test_the_last_day_is_held_out_in_halves(days, name, halves):
    """Broken on purpose: the halves the other way round; the last day trained on."""
    dataset = opened(days, name)
    labels = [row[0] for row in days[1]]
    places = {"train": (0, 80), "heldout": (80, 100), halves[0]: (80, 100), halves[1]: (100, 120), "all": (0, 120)}
    for split, (first, end) in places.items():
        (batch,) = dataset.batches(split, 1000)
        assert batch.labels.tolist() == labels[first:end]
    assert dataset.rows("day_1") == (40, 80)
    assert dataset.info.title == f"Criteo 1TB (real, 120 rows, {name}, split by days, day_2 last)"
    said = f"day_2, in place of day_23, held out in halves: {halves[0]} and {halves[1]}; figures are of the first"
    assert said in dataset.info.convention
    with pytest.raises(UserError, match=r"split 'test': choose one of train, heldout, all, day_0"):
        opened(days, "x4_001").batches("test", 8)


def test_where_days_are_not_there_rows_stand_for_them():
    """As dlrm's code cuts Kaggle's rows: what seven does not divide goes to the first days. Broken on purpose: to the
    last."""
    dlrm, mlperf = CONVENTIONS["dlrm"], CONVENTIONS["mlperf"]
    borders = np.cumsum([0, *(72 // 7 + (day < 72 % 7) for day in range(7))])
    kaggle = splits_of(dlrm, {"train.txt": (0, 72)})
    assert kaggle.rows["train"] == (0, borders[6]) == (0, 62)
    assert (kaggle.rows["test"], kaggle.rows["validation"]) == ((62, 67), (67, 72))
    assert kaggle.says == "split by 7 pseudo-days" and kaggle.details.startswith("the last of 7 pseudo-days held out")
    one = splits_of(mlperf, {"day_0": (0, 9), "day_1": (9, 9)})
    assert one.rows["validation"] == (8, 9) == one.rows["heldout"] and one.rows["test"] == (9, 9)
    assert one.details.startswith("the last of 7 pseudo-days of day_0, in place of day_23, held out")
    whole = splits_of(mlperf, {"day_22": (0, 9), "day_23": (9, 14)})
    assert whole.rows["validation"] == (9, 12) and whole.rows["test"] == (12, 14)
    assert whole.says == "split by days, day_23 last" and whole.details.startswith("day_23 held out in halves")
    with pytest.raises(UserError, match="6 rows are no 7 days"):
        splits_of(dlrm, {"train.txt": (0, 6)})


def test_where_all_categories_are_rare_they_share_a_number(tmp_path):
    """Broken on purpose: an empty vocabulary searched like another."""
    oracle.write_file(tmp_path / "day_0", oracle.made_rows(9))
    options = data.CriteoOptions(convention="x4_001")
    dataset = data.open_dataset("criteo-1tb", tmp_path, prepared=tmp_path / "prepared", options=options)
    assert set(dataset.sizes.values()) == {1} and not whole(dataset).ids.any()


def test_numbered_ids_are_rows_of_a_tensor_train(days):
    """Broken on purpose: raw ids counted, and hashed."""
    dataset = opened(days, "x4_001")
    tables = tables_of(dataset, 4, Techniques.parse("table_kind=tt,tt_from=4"))
    trains = {each.name: each.tensor_train for each in tables if each.tensor_train}
    assert trains and set(trains) == {name for name, size in dataset.sizes.items() if size >= 4}
    assert all((train.rows, train.ids) == (dataset.sizes[name], "range") for name, train in trains.items())


def test_days_are_splits_and_may_be_chosen(days):
    dataset = opened(days)
    assert dataset.days == {"day_0": (0, 40), "day_1": (40, 80), "day_2": (80, 120)}
    (batch,) = dataset.batches("day_1", 100)
    assert batch.labels.tolist() == [row[0] for row in days[1][40:80]]
    two = opened(days, days="0,2")
    assert two.table.column("label").to_pylist() == [row[0] for row in days[1][:40] + days[1][80:]]
    with pytest.raises(UserError, match=r"no day_3 .* there: 0, 1, 2"):
        opened(days, days="1-3")
    for bad in ("x", "1-", "-2", "1,,2"):
        with pytest.raises(UserError, match="numbers and ranges"):
            data.CriteoOptions(days=bad)


def test_others_are_uniform():
    ids = np.arange(20_000)[:, None]
    (made,) = multi_hot(ids, [3], [50])
    counts = np.bincount(made[:, 1:].ravel(), minlength=50)
    assert made[:, 0].tolist() == ids[:, 0].tolist()
    assert abs(counts / counts.mean() - 1).max() < 0.15
    assert np.corrcoef(made[:, 1], made[:, 2])[0, 1] < 0.03


def test_a_day_that_is_done_is_not_read_again(days, tmp_path):
    """Broken on purpose: counters not restored."""
    lines = []

    def stop(line):
        lines.append(line)
        if "day_2" in line:
            raise KeyboardInterrupt

    def prepare(progress=lambda line: None, to=tmp_path):
        return data.open_dataset("criteo-1tb", days[0], prepared=to, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        prepare(stop)
    again = []
    resumed = prepare(again.append)
    assert any("day_0" in line for line in lines) and not any("day_0" in line or "day_1" in line for line in again)
    assert resumed.prepared.content == prepare(to=tmp_path / "other").prepared.content
    assert resumed.info.counts["rows_out"] == 120


def test_the_command_says_convention_content_and_speed(days, monkeypatch, capsys):
    monkeypatch.setenv("NESTLAB_PREPARED", str(days[0] / "prepared"))
    command = ["data", "prepare", "criteo-1tb", "--root", str(days[0]), "--convention", "x4_001", "--days", "0-1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "80 rows" in said and "convention: x4_001 (values only" in said and "rows/s" in said and "content " in said
    assert f"{sum(opened(days, 'x4_001', days='0-1').sizes.values())} numbers of 39 features" in said
    assert main([*command[:3], "--logs", "both"]) == 2


def test_a_day_that_is_renamed_has_its_new_name_and_is_not_read_again(days, tmp_path):
    """Broken on purpose: the name that it had when it was prepared."""
    first = opened(days, prepared=tmp_path)
    files = [days[0] / "criteo-1tb" / f"day_{day}" for day in (2, 5)]
    files[0].rename(files[1])
    try:
        again = opened(days, prepared=tmp_path)
        assert list(first.days) == ["day_0", "day_1", "day_2"] and list(again.days) == ["day_0", "day_1", "day_5"]
        assert again.rows("day_5") == first.rows("day_2")
        assert [entry["name"] for entry in again.manifest["inputs"]] == list(again.days)
        assert (again.prepared.folder, again.prepared.content) == (first.prepared.folder, first.prepared.content)
    finally:
        files[1].rename(files[0])


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_byte_order_mark_costs_no_row(packed, days, tmp_path):
    """Broken on purpose: not stripped; the folder shared with that of the same file prepared before it was."""
    text = b"\xef\xbb\xbf" + (days[0] / "criteo-1tb" / "day_0").read_bytes()
    path = tmp_path / "criteo-1tb" / ("day_0.gz" if packed else "day_0")
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text) if packed else text)
    dataset = opened((tmp_path, days[1][:40]))
    assert dataset.info.counts["rows_rejected"] == 0
    plain = opened(days).table
    assert dataset.table.column("label").to_pylist() == plain.column("label").to_pylist()[:40]
