"""Two-level retrieval inside one shard (JD Retail): keys spread over buckets, each bucket one thread's at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nestlab.embedding import bucket_kernels, kernels
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.regions import Regions
from nestlab.errors import UserError

_FEWEST = 8192  # keys a thread: below, handing work to a thread costs more than it saves


class BucketedIndex:
    """As `KeyIndex`, and gives out the same rows, whatever the numbers of buckets and threads.

    Buckets share nothing: a thread has a run of them for the time of a call, so there is no lock. Each bucket grows
    alone, and at a limit of its own (see `Regions`): a doubling of the whole is spread evenly over the inserts that
    cause it.

    One call may be under way at a time; look-ups beside a change are not defined.
    """

    def __init__(self, initial_keys: int = 1024, buckets: int = 256, threads: int = 1) -> None:
        """
        Args:
            initial_keys: that fit before a bucket grows, up to the chance by which keys spread.
            buckets: a power of two, at most 65,536.
            threads: that share a call, the calling one included; they end with the index or by `close`.

        Raises:
            UserError: a number outside its range.
        """
        if buckets < 1 or buckets & (buckets - 1) or buckets > bucket_kernels.MOST_BUCKETS:
            raise UserError(f"BucketedIndex: buckets is {buckets}; give a power of two up to {1 << 16}")
        if threads < 1:
            raise UserError(f"BucketedIndex: threads is {threads}; give at least 1")
        self._regions = Regions(buckets, initial_keys)
        self._counts = np.zeros(buckets, dtype=np.int64)
        self._runs = np.linspace(0, buckets, min(threads, buckets) + 1).astype(np.int64).tolist()
        self._pool = ThreadPoolExecutor(len(self._runs) - 2, "buckets") if len(self._runs) > 2 else None

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def capacity(self) -> int:
        """Slots of all buckets."""
        return int(self._regions.capacities.sum())

    @property
    def nbytes(self) -> int:
        return 16 * self.capacity

    def close(self) -> None:
        """Ends the threads; the index goes on with the calling one."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def find(self, keys: KeySet) -> np.ndarray:
        """[U] int64: the row of each key, −1 for an unknown one. Changes nothing."""
        return self._find(keys)[0]

    def _find(self, keys: KeySet) -> tuple[np.ndarray, np.ndarray]:
        """Rows [U], and how many unknown keys each bucket was asked for."""
        rows, unknown, at = np.empty(len(keys), dtype=np.int64), np.zeros_like(self._counts), self._regions

        def work(first: int, last: int) -> None:
            bucket_kernels.find(at.slots, at.starts, at.masks, keys.ids, keys.offsets, first, last, rows, unknown)

        self._share(work, len(keys))
        return rows, unknown

    def find_or_insert(self, keys: KeySet, book: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Rows [U] of the keys, and the positions [new] of those that were inserted (their records are unwritten).

        Raises:
            UserError: no room for the records of the new keys; nothing was changed then.
        """
        rows, unknown = self._find(keys)
        if not (needed := int(unknown.sum())):
            return rows, np.empty(0, dtype=np.int64)
        if needed > book.available:
            raise book.exhausted(needed)
        fresh = np.empty(needed, dtype=np.int64)
        self._grow(self._counts + unknown)
        bucket_kernels.give_rows(rows, fresh, book.free, book.allocator)
        at = self._regions

        def work(first: int, last: int) -> None:
            bucket_kernels.insert(at.slots, at.starts, at.masks, keys.ids, keys.offsets, first, last, fresh, rows)

        self._share(work, needed)
        self._counts += unknown
        return rows, fresh

    def remove(self, keys: KeySet) -> np.ndarray:
        """Removes keys; returns the rows [U] they had, −1 if unknown. Giving the rows back is the caller's."""
        rows, removed, at = np.empty(len(keys), dtype=np.int64), np.zeros_like(self._counts), self._regions

        def work(first: int, last: int) -> None:
            bucket_kernels.remove(at.slots, at.starts, at.masks, keys.ids, keys.offsets, first, last, rows, removed)

        self._share(work, len(keys))
        self._counts -= removed
        return rows

    def entries(self, table: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids [n], ascending, and rows [n] of one table: an order that does not depend on the history."""
        ids, rows, count = np.empty(len(self), dtype=np.int64), np.empty(len(self), dtype=np.int64), 0
        for slots in self._regions.views():
            count += kernels.entries(slots, table, ids[count:], rows[count:])
        order = np.argsort(ids[:count])
        return ids[:count][order], rows[:count][order]

    def rows_in_use(self, bound: int) -> np.ndarray:
        """[bound] bool: which of the rows below `bound` belong to a key."""
        marks = np.zeros(bound, dtype=bool)
        for slots in self._regions.views():
            kernels.mark_rows(slots, marks)
        return marks

    def flagged(self, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, tables and rows [n] of the keys whose row is flagged, by (table, id). flags: [rows] bool."""
        found = [np.empty(int(np.count_nonzero(flags)), dtype=np.int64) for _ in range(3)]
        count = 0
        for slots in self._regions.views():
            count += kernels.flagged(slots, flags, *(part[count:] for part in found))
        ids, tables, rows = (part[:count] for part in found)
        order = np.lexsort((ids, tables))
        return ids[order], tables[order], rows[order]

    def reserve(self, keys: int) -> None:
        """Grows at once to what `keys` keys need when they spread evenly."""
        self._grow(np.maximum(self._counts, -(-keys // self._counts.size)))

    def _grow(self, counts: np.ndarray) -> None:
        """Makes room for counts [buckets] keys: the threads rehash the buckets whose limit that exceeds."""
        at = self._regions
        starts, masks = at.plan(counts)
        if starts is at.starts:
            return

        def work(first: int, last: int) -> None:
            bucket_kernels.rehash(at.slots, at.starts, at.masks, starts, masks, first, last)

        self._share(work, int(at.capacities[starts != at.starts].sum()))
        at.move(starts, masks)

    def _share(self, work: Callable[[int, int], None], size: int) -> None:
        """Runs work(first, last) over all buckets: a run of them a thread, or all in this one where `size` is small."""
        if self._pool is None or size < _FEWEST * (len(self._runs) - 1):
            work(0, self._counts.size)
            return
        runs = list(zip(self._runs, self._runs[1:], strict=False))
        others = [self._pool.submit(work, *run) for run in runs[1:]]
        try:
            work(*runs[0])
        finally:
            for other in others:
                other.result()
