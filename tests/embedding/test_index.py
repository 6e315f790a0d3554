"""The key index against a Python dict, and its arena."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding.host.arena import Arena
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.embedding.keyset import KeySet
from nestlab.errors import UserError

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
ID = st.one_of(
    st.sampled_from([0, -1, 1, INT64.min, INT64.max, INT64.min + 1]),
    st.integers(-8, 8),
    st.integers(-16, 16).map(lambda k: k << 40),  # multiples of 2^k: what a weak hash clusters
    st.integers(INT64.min, INT64.max),
)
TABLES = 3
OPERATION = st.tuples(
    st.sampled_from(["insert", "insert", "find", "remove"]),
    st.lists(st.tuples(st.integers(0, TABLES - 1), ID), max_size=60, unique=True),
)


def key_set(keys: list[tuple[int, int]], tables: int = TABLES) -> tuple[KeySet, list[tuple[int, int]]]:
    """The keys, table-major, in the order given within a table."""
    ordered = [key for table in range(tables) for key in keys if key[0] == table]
    counts = np.bincount([table for table, _ in ordered], minlength=tables) if ordered else np.zeros(tables, int)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return KeySet(np.array([i for _, i in ordered], dtype=np.int64), offsets), ordered


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=12))
def test_any_sequence_of_operations_equals_a_dict(operations):
    """Broken on purpose: with `_close_gap` merely emptying the slot, a later find misses a key and this fails."""
    index, book, model, freed = KeyIndex(1), Rows(1 << 14, 4), {}, []
    used = 0
    for name, keys in operations:
        keys, ordered = key_set(keys)
        expected = [model.get(key, -1) for key in ordered]
        if name == "find":
            assert index.find(keys).tolist() == expected
        elif name == "remove":
            assert index.remove(keys).tolist() == expected
            gone = [model.pop(key) for key in ordered if key in model]
            book.give_back(np.array(gone, dtype=np.int64))
            freed += gone
        else:
            rows, fresh = index.find_or_insert(keys, book)
            assert fresh.tolist() == [i for i, key in enumerate(ordered) if key not in model]
            for key in ordered:
                if key not in model:  # freed rows first, the last one freed before the others
                    model[key] = freed.pop() if freed else (used := used + 1) - 1
            assert rows.tolist() == [model[key] for key in ordered]
        assert len(index) == len(model) == book.used
        assert len(set(model.values())) == len(model), "two keys share a row"
    everything, ordered = key_set(sorted(model))
    assert index.find(everything).tolist() == [model[key] for key in ordered]
    for table in range(TABLES):
        ids, rows = index.entries(table)
        assert list(zip(ids.tolist(), rows.tolist(), strict=True)) == sorted(
            (i, row) for (t, i), row in model.items() if t == table
        )


@pytest.mark.parametrize("shift", [0, 1, 12, 20, 32, 45])
def test_structured_ids_do_not_cluster(shift):
    """Ids that are multiples of 2^shift: the mean distance to the home slot stays that of a random hash (≤ 0.5 + …)."""
    count = 20_000
    ids = (np.arange(count, dtype=np.int64) - count // 2) << shift
    ids = np.unique(ids)
    index = KeyIndex(1)
    rows, fresh = index.find_or_insert(KeySet(ids, [0, ids.size]), Rows(1 << 18, 4))
    assert rows.tolist() == fresh.tolist() == list(range(ids.size))
    words = index.slots[1::2] != 0
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate(([0], words.astype(np.int8), [0]))) != 0))[::2]
    assert index.capacity >= 2 * ids.size
    assert runs.max() < 100, "linear probing over a good hash at half load has no long runs"


def test_one_id_in_many_tables_is_as_many_keys():
    """Broken on purpose: without the comparison of tables, about 30 of these keys meet a namesake in their run; the
    test against a dict above is too small to see it."""
    tables, ids = 64, np.arange(300)
    keys = KeySet(np.tile(ids, tables), np.arange(tables + 1) * ids.size)
    index, book = KeyIndex(1), Rows(1 << 18, 4)
    rows, fresh = index.find_or_insert(keys, book)
    assert fresh.size == len(keys) and np.unique(rows).size == len(keys)
    half = KeySet(np.tile(ids, tables // 2), np.concatenate((np.arange(33) * 300, np.full(32, 9600))))
    assert (index.remove(half) == rows[:9600]).all()
    assert (index.find(keys) == np.where(np.arange(len(keys)) < 9600, -1, rows)).all()


def test_rows_do_not_depend_on_growth():
    ids = np.random.default_rng(0).permutation(5_000).astype(np.int64)
    keys = KeySet(ids, [0, 2_000, 5_000])
    results = []
    for initial in (1, 10_000):
        index = KeyIndex(initial)
        results.append(index.find_or_insert(keys, Rows(1 << 18, 4))[0])
    assert (results[0] == results[1]).all()
    grown = KeyIndex(1)
    grown.reserve(5_000)
    assert grown.capacity == KeyIndex(5_000).capacity


def test_finding_known_keys_does_not_grow_a_half_full_index():
    index, book = KeyIndex(32), Rows(1 << 14, 4)
    keys = KeySet(np.arange(32), [0, 32])
    index.find_or_insert(keys, book)
    slots = index.slots
    index.find_or_insert(keys, book)
    assert index.slots is slots and index.capacity == 64


def test_growth_keeps_earlier_addresses_and_values():
    arena = Arena(8, torch.float32, 1 << 26)
    index, book = KeyIndex(1), Rows(arena.row_capacity, arena.record_bytes)
    index.find_or_insert(KeySet(np.arange(4), [0, 4]), book)
    arena.array[:4] = 7.0
    address, view = arena.records.data_ptr(), arena.records[:4]
    for start in range(4, 400_000, 50_000):
        rows, _ = index.find_or_insert(KeySet(np.arange(start, start + 50_000), [0, 50_000]), book)
        arena.array[rows] = 1.0
    assert arena.records.data_ptr() == address
    assert (view == 7.0).all() and (arena.records[4] == 1.0).all()


def test_reserved_memory_is_committed_by_touch_only():
    resident = _resident_bytes()
    arena = Arena(16, torch.float32, 8 << 30)
    assert arena.row_capacity * arena.record_bytes > 1 << 30
    arena.array[: 1 << 14] = 1.0  # 1 MB of records
    assert _resident_bytes() - resident < 64 << 20


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        pytest.skip("no /proc on this platform")


def test_exhausted_memory_is_one_clear_error_and_changes_nothing():
    book, index = Rows(Arena(4, torch.float32, 16 * 10).row_capacity, 16), KeyIndex(64)
    index.find_or_insert(KeySet(np.arange(8), [0, 8]), book)
    before = index.slots.copy()
    with pytest.raises(UserError, match="no room for 4 more rows of 16 bytes"):
        index.find_or_insert(KeySet(np.arange(12), [0, 12]), book)
    assert (index.slots == before).all() and book.used == 8 and len(index) == 8
    rows, _ = index.find_or_insert(KeySet(np.arange(10), [0, 10]), book)  # known keys need no room
    assert rows.tolist() == list(range(10))


def test_key_sets_are_checked():
    with pytest.raises(ValueError, match="not ascending from 0 to 3"):
        KeySet(np.arange(3), [0, 2])
    with pytest.raises(ValueError, match="int64"):
        KeySet(np.array([0.5]), [0, 1])
    assert KeySet(torch.tensor([3, 4]), torch.tensor([0, 2])).ids.tolist() == [3, 4]
