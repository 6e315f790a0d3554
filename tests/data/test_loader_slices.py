"""Slices and positions of the loader: what many ranks read is one sequence of batches, wherever it begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestlab.data as data
from nestlab.batch import Batch
from nestlab.data import Loader, Position
from nestlab.data.loader import Collator
from nestlab.errors import UserError

FEATURES = ("a", "b")


def table_of(rows: int, chunk: int = 7) -> pa.Table:
    """Row i: dense i, a = i (missing where i is a multiple of 3), b = [−i, −i] (none where i is odd), label i mod 2."""
    parts = []
    for begin in range(0, rows, chunk):
        numbers = range(begin, min(begin + chunk, rows))
        parts.append(
            pa.table(
                {
                    "d": pa.array(list(numbers), pa.int64()),
                    "a": pa.array([None if i % 3 == 0 else i for i in numbers], pa.int64()),
                    "b": pa.array([[] if i % 2 else [-i, -i] for i in numbers], pa.list_(pa.int64())),
                    "label": pa.array([i % 2 for i in numbers], pa.int8()),
                }
            )
        )
    return pa.concat_tables(parts)


def loader(rows: int, size: int, begin: int = 0, **options) -> Loader:
    return Loader(table_of(rows), Collator(("d",), FEATURES), (begin, rows), size, **options)


def numbers(batch: Batch) -> list[int]:
    """Which rows a batch holds, by their dense value; its ids are checked on the way."""
    rows = torch.expm1(batch.dense[:, 0].double()).round().int().tolist()
    ids = [i for i in rows if i % 3] + [-i for i in rows if i % 2 == 0 for _ in (0, 1)]
    assert batch.ids.tolist() == ids
    assert batch.lengths.tolist() == [int(i % 3 > 0) for i in rows] + [2 * (i % 2 == 0) for i in rows]
    assert batch.labels.tolist() == [i % 2 for i in rows]
    return rows


@given(
    *(st.integers(low, high) for low, high in ((1, 60), (1, 20), (1, 7))),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 4)),
)
@settings(max_examples=60, deadline=None)
def test_the_slices_of_all_ranks_are_the_global_batch(rows, size, world, shuffle, drop_last, limit):
    """Whatever the world size, in the order of ranks, each slice at its place; every rank has as many batches.

    Broken on purpose: the slice taken of `batch_size` in place of a short last batch's own size; B // W rows for every
    rank, the rest dropped; a rank's own permutation. Each failed.
    """
    order = {"shuffle": shuffle, "seed": 5, "drop_last": drop_last, "limit": limit}
    whole = loader(rows, size, min(3, rows - 1), **order)
    parts = [loader(rows, size, min(3, rows - 1), **order).slice(rank, world) for rank in range(world)]
    for _ in range(2):
        expected = [numbers(batch) for batch in whole]
        read = [[numbers(batch) for batch in part] for part in parts]
        assert len(expected) == len(whole)
        assert [whole.samples_of(b) for b in range(len(whole))] == [len(batch) for batch in expected]
        assert {len(batches) for batches in read} == {len(whole)} == {len(part) for part in parts}
        for b, batch in enumerate(expected):
            size_b = len(batch)
            for rank in range(world):
                assert read[rank][b] == batch[rank * size_b // world : (rank + 1) * size_b // world]


@given(*(st.integers(low, high) for low, high in ((1, 60), (1, 20), (1, 3), (0, 3), (0, 99))), st.booleans())
@settings(max_examples=60, deadline=None)
def test_begun_at_a_position_it_gives_what_is_left(rows, size, world, epoch, batch, shuffle):
    """Then whole epochs follow. Broken on purpose: one batch too far; the epoch of the order not the position's; the
    first batch skipped in the next epoch too. Each failed."""
    whole = loader(rows, size, shuffle=shuffle).slice(0, world)
    epochs = [[numbers(b) for b in whole] for _ in range(epoch + 3)]
    batch %= len(whole) + 1
    resumed = loader(rows, size, shuffle=shuffle).slice(0, world)
    resumed.begin_at(Position(epoch, batch))
    at = batch
    if batch == len(whole):
        epoch, at = epoch + 1, 0
    assert resumed.start == Position(epoch, at) == Position().after(epoch * len(whole) + at, len(whole))
    assert [numbers(b) for b in resumed] == epochs[epoch][at:]
    assert resumed.start == Position(epoch + 1)
    assert [numbers(b) for b in resumed] == epochs[epoch + 1]


def test_only_the_slices_rows_are_read_and_none_before_the_position():
    """What is collated is the slice, not the global batch; what lies before the position is not read at all."""
    for shuffle in (False, True):
        seen: list[int] = []

        def collate(rows: pa.Table, seen=seen) -> Batch:
            seen.append(rows.num_rows)
            return Collator(("d",), FEATURES)(rows)

        part = Loader(table_of(40), collate, (0, 40), 12, shuffle=shuffle).slice(1, 3)
        part.begin_at(Position(0, 2))
        assert [batch.size for batch in part] == [4, 1] == seen


def test_a_slice_without_a_sample_is_an_empty_batch():
    parts = [list(loader(5, 4, shuffle=shuffle).slice(0, 3)) for shuffle in (False, True)]
    for batches in parts:
        assert [b.size for b in batches] == [1, 0]
        assert batches[1].dense.shape == (0, 1) and batches[1].lengths.numel() == batches[1].ids.numel() == 0
        assert batches[1].features == FEATURES and batches[1].ids.dtype == torch.int64


def test_kuairand_is_sliced_too(tmp_path):
    """Joined features and histories of an empty slice as well."""
    dataset = data.open_dataset("kuairand-synth", tmp_path, rows=120, prepared=tmp_path / "prepared")
    for shuffle in (False, True):
        options = {"shuffle": shuffle, "history": 3}
        whole = list(dataset.batches("train", 19, **options))
        parts = [list(dataset.batches("train", 19, **options).slice(rank, 4)) for rank in range(4)]
        for b, batch in enumerate(whole):
            for rank in range(4):
                got, expected = parts[rank][b], batch.slice(rank * batch.size // 4, (rank + 1) * batch.size // 4)
                for name in ("dense", "ids", "lengths", "labels"):
                    assert torch.equal(getattr(got, name), getattr(expected, name)), (b, rank, name)
        assert 0 in {part[-1].size for part in parts}


def test_what_is_out_of_range_is_refused():
    one = loader(10, 4)
    for bad in (Position(-1), Position(0, -1), Position(0, 4)):
        with pytest.raises(UserError, match=r"epoch=|batch="):
            one.begin_at(bad)
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=r"Loader\.slice"):
            one.slice(rank, world)
    with pytest.raises(ValueError, match=r"Loader\.slice"):
        one.slice(0, 2).slice(0, 2)
    nothing = loader(10, 4, limit=0)
    nothing.begin_at(Position(2))
    assert list(nothing) == [] and nothing.start == Position(3)


def test_a_slice_keeps_a_position_of_its_own():
    whole = loader(10, 4)
    part = whole.slice(1, 2)
    list(part)
    assert (whole.epoch, part.epoch) == (0, 1)
    assert np.array_equal([b.size for b in whole], [4, 4, 2])
