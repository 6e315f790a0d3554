"""The bucketed index against `KeyIndex`: the same rows to the bit, whatever the numbers of buckets and threads."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.benchmarks import buckets as benchmark
from nestlab.embedding import KeySet, buckets
from nestlab.embedding.buckets import BucketedIndex
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.errors import UserError

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
ID = st.one_of(
    st.sampled_from([0, -1, 1, INT64.min, INT64.max]),
    st.integers(-30, 30),
    st.integers(-16, 16).map(lambda k: k << 40),
    st.integers(INT64.min, INT64.max),
)
TABLES = 3
OPERATION = st.tuples(
    st.sampled_from(["insert", "insert", "find", "remove", "reserve"]),
    st.lists(st.tuples(st.integers(0, TABLES - 1), ID), max_size=80, unique=True),
)


def key_set(keys) -> KeySet:
    """(table, id) pairs, table-major, in the order given within a table."""
    ids = [i for table in range(TABLES) for t, i in keys if t == table]
    counts = np.bincount(np.array([t for t, _ in keys], dtype=np.int64), minlength=TABLES)
    return KeySet(np.array(ids, dtype=np.int64), np.concatenate(([0], np.cumsum(counts))))


@pytest.fixture
def eager(monkeypatch):
    """Threads take part in calls of any size."""
    monkeypatch.setattr(buckets, "_FEWEST", 0)


def same(one, other) -> bool:
    return all((a == b).all() and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.mark.usefixtures("eager")
@settings(max_examples=80, deadline=None)
@given(st.lists(OPERATION, max_size=10), st.sampled_from([1, 2, 16, 1024]), st.integers(1, 3))
def test_any_sequence_of_operations_equals_key_index(operations, number, threads):
    """Broken on purpose: with rows given out from the last key to the first this fails, and with a bucket's limit above
    its slots it never ends."""
    plain, bucketed = KeyIndex(1), BucketedIndex(1, number, threads)
    books = Rows(1 << 20, 8), Rows(1 << 20, 8)
    for name, pairs in operations:
        keys = key_set(pairs)
        if name == "insert":
            assert same(plain.find_or_insert(keys, books[0]), bucketed.find_or_insert(keys, books[1]))
        elif name == "find":
            assert same([plain.find(keys)], [bucketed.find(keys)])
        elif name == "reserve":
            bucketed.reserve(len(keys) * 3)
        else:
            gone, also = plain.remove(keys), bucketed.remove(keys)
            assert same([gone], [also])
            for book in books:
                book.give_back(gone[gone >= 0])
        assert len(plain) == len(bucketed) and (books[0].allocator == books[1].allocator).all()
        assert 2 * len(bucketed) <= bucketed.capacity
    for table in range(TABLES):
        assert same(plain.entries(table), bucketed.entries(table))
    flags = plain.rows_in_use(books[0].ever)
    assert same([flags], [bucketed.rows_in_use(books[0].ever)])
    flags[::2] = False
    assert same(plain.flagged(flags), bucketed.flagged(flags))
    bucketed.close()


def test_runs_that_wrap_around_the_end_of_a_region_are_closed():
    """Regions of 8 and 16 slots: of 1,024, some have a run of three across their end.

    Broken on purpose: with the distance from an entry's home taken without the mask, entries move before their home and
    keys are lost. The test above is too small to see it.
    """
    ids = np.random.default_rng(6).integers(INT64.min, INT64.max, 3000)
    plain, bucketed, keys = KeyIndex(1), BucketedIndex(1, 1024), KeySet(ids, [0, 1000, 1000, 3000])
    for index in (plain, bucketed):
        index.find_or_insert(keys, Rows(3000, 8))
    gone = keys.take(np.flatnonzero(np.random.default_rng(7).random(3000) < 0.4))
    assert same([plain.remove(gone)], [bucketed.remove(gone)])
    assert same([plain.find(keys)], [bucketed.find(keys)])


def test_many_keys_over_two_threads_grow_to_the_same_rows():
    """Calls large enough for the pool as it is; 300,000 keys in two tables, with removals in between."""
    rng = np.random.default_rng(2)
    plain, bucketed, books = KeyIndex(1), BucketedIndex(1, 64, 2), (Rows(1 << 20, 8), Rows(1 << 20, 8))
    for _ in range(6):
        ids = np.unique(rng.integers(0, 400_000, 60_000)) << 13
        keys = KeySet(rng.permutation(ids), [0, ids.size // 3, ids.size, ids.size])
        assert same(plain.find_or_insert(keys, books[0]), bucketed.find_or_insert(keys, books[1]))
        some = keys.take(np.arange(0, len(keys), 4))
        gone = plain.remove(some)
        assert same([gone], [bucketed.remove(some)])
        for book in books:
            book.give_back(gone)
    assert len(plain) == len(bucketed) > 100_000
    assert same(plain.entries(1), bucketed.entries(1))
    bucketed.close()
    assert same([plain.find(keys)], [bucketed.find(keys)])


def test_buckets_grow_one_after_the_other():
    """From 64,000 to 128,000 keys in 40 calls every bucket doubles once, and no call doubles more than a tenth of them.

    Broken on purpose: with one limit for all buckets, three calls double nearly all of them.
    """
    index, book, grown = BucketedIndex(1, 256), Rows(1 << 20, 8), []
    ids = np.random.default_rng(4).permutation(128_000)
    index.find_or_insert(KeySet(ids[:64_000], [0, 64_000]), book)
    before = index.capacity
    for part in np.split(ids[64_000:], 40):
        masks = index._regions.masks
        index.find_or_insert(KeySet(part, [0, part.size]), book)
        grown.append(int((masks != index._regions.masks).sum()))
    assert 240 <= sum(grown) <= 272 and max(grown) <= 26
    assert index.capacity == pytest.approx(2 * before, rel=0.05)
    assert len(index) / index.capacity == pytest.approx(0.25, abs=0.01)


def test_memory_of_outgrown_regions_is_given_back():
    index, book = BucketedIndex(1, 4), Rows(1 << 22, 8)
    resident = _resident_bytes()
    for part in np.split(np.arange(2_000_000), 20):
        index.find_or_insert(KeySet(part, [0, part.size]), book)
    assert index.nbytes == 16 * index.capacity > 64 << 20
    assert _resident_bytes() - resident < index.nbytes + (24 << 20), "the regions left behind are as large again"


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        pytest.skip("no /proc on this platform")


def test_exhausted_rows_change_nothing():
    index, book = BucketedIndex(64, 16), Rows(10, 16)
    index.find_or_insert(key_set([(0, i) for i in range(8)]), book)
    slots, allocator = index._regions.slots[: 4 * index.capacity].copy(), book.allocator.copy()
    with pytest.raises(UserError, match="no room for 4 more rows"):
        index.find_or_insert(key_set([(0, i) for i in range(12)]), book)
    assert (index._regions.slots[: slots.size] == slots).all() and (book.allocator == allocator).all()
    rows, _ = index.find_or_insert(key_set([(0, i) for i in range(10)]), book)
    assert rows.tolist() == list(range(10)) and len(index) == 10


def test_empty_calls_and_wrong_numbers():
    index = BucketedIndex(0, 2, 5)
    rows, fresh = index.find_or_insert(key_set([]), Rows(10, 8))
    assert rows.size == fresh.size == len(index) == index.find(key_set([])).size == index.remove(key_set([])).size == 0
    for wrong in ({"buckets": 0}, {"buckets": 48}, {"buckets": 1 << 17}, {"threads": 0}):
        with pytest.raises(UserError, match=f"BucketedIndex: {next(iter(wrong))} is {next(iter(wrong.values()))}"):
            BucketedIndex(**wrong)


@pytest.mark.usefixtures("eager")
def test_threads_end_with_the_index():
    def running() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("buckets")]

    index = BucketedIndex(1, 16, 3)
    index.find_or_insert(key_set([(0, i) for i in range(100)]), Rows(1000, 8))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("buckets")]
    assert threads
    del index
    for thread in threads:
        thread.join(timeout=10)
    assert not running()


def test_the_benchmark_has_every_row_and_summary_key():
    """Its shape at a tiny scale, not its figures."""
    scale = benchmark.Scale(distinct=4000, lookups=1000, grown=8000, call=500, buckets=(4, 16), repeats=2)
    result = benchmark.run(scale)
    kinds = {(row["buckets"], row["threads"]) for row in result["rows"] if row["work"] == "look-up"}
    assert kinds == {(0, 1), (4, 1), (4, 2), (16, 1), (16, 2)}
    assert {"lookup_vs_key_index_1_thread", "lookup_vs_key_index_2_thread"} <= set(result["summary"])
    assert result["summary"]["longest_call_ms"] > 0 and json.dumps(result)
