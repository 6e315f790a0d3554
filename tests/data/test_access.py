"""Access statistics against a cache that is simulated, sets that are compared, and figures of the real rows.

Broken on purpose, each seen to fail here: the mark of an earlier access not taken back; a hit counted at a distance of
as many keys as there are slots; shared keys counted once an access, or with any batch before; a batch that is not
whole counted; a table of the counted rows alone.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab import cli
from nestlab.data import open_dataset
from nestlab.data.access import ALL, Accesses, AccessOptions, access_statistics, accesses_of, miss_ratio
from nestlab.data.access_kernels import reuse, stack_histogram
from nestlab.data.access_plot import by_feature, miss_ratio_figure
from nestlab.errors import UserError

CODES = st.lists(st.integers(0, 8), max_size=60)


def lru_misses(codes, slots):
    """A cache, look-up by look-up."""
    cache, misses = OrderedDict(), 0
    for code in codes:
        if code in cache:
            cache.move_to_end(code)
            continue
        misses += 1
        cache[code] = None
        if len(cache) > slots:
            cache.popitem(last=False)
    return misses


def numbered(values):
    keys, codes = np.unique(np.array(values, np.int64), return_inverse=True)
    return codes.astype(np.int64), len(keys)


@settings(max_examples=60, deadline=None)
@given(CODES)
def test_stack_distances_give_the_misses_of_a_simulated_cache_of_any_size(values):
    codes, keys = numbered(values)
    histogram = stack_histogram(codes, keys)
    assert histogram.sum() == len(codes) and histogram[keys] == keys
    for slots in range(1, keys + 2):
        assert len(codes) - histogram[: min(slots, keys)].sum() == lru_misses(codes.tolist(), slots)


@settings(max_examples=20, deadline=None)
@given(CODES, st.integers(0, 20))
def test_the_curve_is_that_of_a_cache_of_a_share_of_the_table(values, further):
    codes, keys = numbered(values)
    accesses = Accesses("f", codes, np.arange(1, len(codes) + 1), keys, keys + further)
    for line in miss_ratio(accesses, (0.01, 0.25, 1.0)):
        assert line["slots"] == max(1, round(line["size"] * (keys + further)))
        assert line["miss_ratio"] == pytest.approx(lru_misses(codes.tolist(), line["slots"]) / max(1, len(codes)))
        assert line["cold"] == keys / max(1, len(codes))


@settings(max_examples=40, deadline=None)
@given(CODES, st.lists(st.integers(0, 60), max_size=5))
def test_shared_keys_are_those_of_two_sets(values, cuts):
    codes, keys = numbered(values)
    ends = np.array(sorted(min(cut, len(codes)) for cut in cuts), np.int64)
    unique, shared = reuse(codes, ends, keys)
    batches = [set(codes[a:b].tolist()) for a, b in zip([0, *ends[:-1]], ends, strict=True)] if len(ends) else []
    assert unique.tolist() == [len(batch) for batch in batches]
    before = [set(), *batches[:-1]]
    assert shared.tolist() == [len(batch & other) for batch, other in zip(batches, before, strict=False)]


def criteo(folder, rows):
    """A data set of chosen C1 and C2 (None: missing), every other field empty."""
    (folder / "criteo-kaggle").mkdir(parents=True)
    cells = [["1", *[""] * 13, *("" if v is None else f"{v:x}" for v in row), *[""] * 24] for row in rows]
    text = "".join("\t".join(row) + "\n" for row in cells)
    (folder / "criteo-kaggle" / "train.txt").write_text(text)
    return open_dataset("criteo-kaggle", folder, prepared=folder / "prepared")


def test_statistics_of_a_few_rows_by_hand(tmp_path):
    rows = [(1, 7), (1, None), (2, 7), (1, 8), (2, 9), (3, None), (4, 9), (5, 9), (6, 6)]
    options = AccessOptions(rows=7, batches=(2, 3), sizes=(0.5, 1.0))
    frames = access_statistics(criteo(tmp_path, rows), options)
    access = frames["access"].set_index("feature")
    assert access.loc["C1", ["rows", "lookups"]].tolist() == [6, 7]  # 5 and 6 lie in the table, beyond the counted rows
    assert access.loc["C1", "active_share"] == pytest.approx(4 / 6)
    shares = np.array([3, 2, 1, 1]) / 7
    assert access.loc["C1", "entropy_bits"] == pytest.approx(-(shares * np.log2(shares)).sum())
    assert access.loc["C1", "entropy_share"] == pytest.approx(-(shares * np.log2(shares)).sum() / 2)
    assert access.loc["C1", "rows_for_90"] == pytest.approx(4 / 6)  # 3 + 2 + 1 of 7 are not yet 90 %
    assert access.loc["C3", ["rows", "lookups", "active_share", "entropy_bits"]].tolist() == [0, 0, 0, 0]
    reused = frames["reuse"].set_index(["batch", "feature"])
    # C1 in twos: {1}, {1, 2}, {2, 3}; the seventh row makes no batch. C2: {7}, {7, 8}, {9}, of 5 look-ups.
    assert reused.loc[(2, "C1"), ["batches", "lookups"]].tolist() == [3, 6]
    assert reused.loc[(2, "C1"), ["unique_share", "overlap"]].tolist() == pytest.approx([5 / 6, 2 / 4])
    assert reused.loc[(2, "C1"), "active_share"] == pytest.approx(5 / 3 / 6)
    assert reused.loc[(2, "C2"), ["unique_share", "overlap"]].tolist() == pytest.approx([4 / 4, 1 / 3])
    assert reused.loc[(2, ALL), ["unique_share", "overlap"]].tolist() == pytest.approx([9 / 10, 3 / 7])
    assert reused.loc[(3, "C1"), "batches"] == 2 and np.isnan(reused.loc[(3, "C3"), "overlap"])
    missed = frames["miss_ratio"].set_index(["feature", "size"])
    assert missed.loc[("C1", 0.5), ["slots", "miss_ratio"]].tolist() == pytest.approx([3, 4 / 7])
    assert missed.loc[("C3", 0.5), "miss_ratio"] == 0
    tables = by_feature(frames)
    assert [len(table) for table in tables.values()] == [26, 27, 27, 26]
    assert miss_ratio_figure(frames, {"dataset": "made", "how": "measured"}, features=2)._repr_png_()


def test_one_row_and_negative_ids_and_numbers_out_of_place(tmp_path):
    frames = access_statistics(criteo(tmp_path, [(0xFFFFFFFF, 0)]), AccessOptions(batches=(4,)))
    assert frames["access"].lookups.sum() == 2 and frames["reuse"].unique_share.isna().all()
    for numbers in (
        {"rows": 0},
        {"table_rows": 5},
        {"batches": ()},
        {"batches": (0,)},
        {"sizes": (0.0,)},
        {"sizes": ()},
    ):
        with pytest.raises(UserError, match="access: "):
            AccessOptions(**numbers)


def test_the_command_line_prints_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))
    criteo(tmp_path, [(1, 7), (1, None), (2, 7)])
    line = ["data", "describe", "criteo-kaggle", "--root", str(tmp_path)]
    assert cli.main([*line, "--batch", "1,2", "--rows", "2"]) == 0
    printed = capsys.readouterr().out
    assert "unique / look-ups, by batch size" in printed and "misses under LRU" in printed and "entropy_bits" in printed
    assert cli.main([*line, "--batch", "many"]) == 2
    assert "--batch many: write numbers of samples" in capsys.readouterr().err


# (data set, batch, feature): distinct keys over look-ups, overlap; the reference's figures of the same kind of rows.
# Pure's are of 04-25 to 05-08; beside them 1,000 earlier rows lie here. Criteo's are of 10,000 rows, here are the first
# 5,000, and it does not say whether a missing value counts as a key: here it looks up nothing.
REAL = {
    ("kuairand-pure", 256, "video_id"): (0.835, 0.19, 0.005),
    ("kuairand-pure", 1024, "video_id"): (0.647, 0.38, 0.005),
    ("kuairand-pure", 4096, "video_id"): (0.400, 0.56, 0.005),
    ("kuairand-pure", 16_384, "video_id"): (0.195, 0.72, 0.005),
    ("kuairand-pure", 4096, "user_id"): (0.715, 0.23, 0.01),
    ("criteo-1tb", 256, ALL): (0.305, 0.28, 0.02),
    ("criteo-1tb", 1024, ALL): (0.224, 0.31, 0.02),
    ("criteo-1tb", 4096, ALL): (0.156, None, 0.02),
}


@pytest.mark.data
@pytest.mark.parametrize("name", ["kuairand-pure", "criteo-1tb"])
def test_real_rows_have_the_reuse_that_is_known_of_them(name, real_data, tmp_path):
    dataset = open_dataset(name, real_data)
    wanted = [key for key in REAL if key[0] == name]
    options = AccessOptions(rows=dataset.info.rows, batches=tuple(dict.fromkeys(batch for _, batch, _ in wanted)))
    if name == "kuairand-pure":
        dataset.features = ("user_id", "video_id")  # an instance's own: the others take seconds
    frame = access_statistics(dataset, options)["reuse"].set_index(["batch", "feature"])
    for key in wanted:
        unique, overlap, tolerance = REAL[key]
        assert frame.loc[key[1:], "unique_share"] == pytest.approx(unique, abs=tolerance)
        if overlap is not None:
            assert frame.loc[key[1:], "overlap"] == pytest.approx(overlap, abs=max(tolerance, 0.01))


@pytest.mark.data
def test_a_real_feature_against_a_simulated_cache(real_data):
    options = AccessOptions(rows=5000)
    dataset = open_dataset("criteo-1tb", real_data)
    accesses = next(each for each in accesses_of(dataset, options) if each.feature == "C3")
    for line in miss_ratio(accesses, (0.01, 0.1, 0.5)):
        misses = lru_misses(accesses.codes.tolist(), line["slots"])
        assert line["miss_ratio"] == pytest.approx(misses / len(accesses.codes), abs=1e-12)
