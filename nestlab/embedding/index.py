"""The key index of one group of tables: key → row, exact, batch operations only."""

from __future__ import annotations

import numpy as np

from nestlab.embedding import kernels
from nestlab.embedding.host.arena import zeros
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.keyset import KeySet

_MIN_CAPACITY = 64


class KeyIndex:
    """Open addressing over 16-byte slots, at most half full; see `kernels` for the layout.

    One thread may change it at a time; look-ups beside a change are not defined. A `Rows` book gives rows out, in
    order of first appearance, so that they do not depend on the hash function or on when the index grew.
    """

    def __init__(self, initial_keys: int = 1024) -> None:
        self._count = 0
        self.slots = zeros(2 * _capacity_for(initial_keys), np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        """Slots; a power of two."""
        return self.slots.size // 2

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    def find(self, keys: KeySet) -> np.ndarray:
        """[U] int64: the row of each key, −1 for an unknown one. Changes nothing."""
        rows = np.empty(len(keys), dtype=np.int64)
        kernels.find(self.slots, keys.ids, keys.offsets, rows)
        return rows

    def find_or_insert(self, keys: KeySet, book: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Rows [U] of the keys, and the positions [new] of those that were inserted (their records are unwritten).

        Raises:
            UserError: no room for the records of the new keys; nothing was changed then.
        """
        if len(keys) > book.available and (needed := self._count_unknown(keys)) > book.available:
            raise book.exhausted(needed)
        rows, fresh = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.int64)
        progress = np.array([0, 0, self._count, self.capacity // 2], dtype=np.int64)
        while True:
            kernels.find_or_insert(self.slots, keys.ids, keys.offsets, rows, fresh, book.free, book.allocator, progress)
            self._count = int(progress[2])
            if progress[0] == len(keys):
                return rows, fresh[: progress[1]]
            self._grow(2 * self.capacity)
            progress[3] = self.capacity // 2

    def remove(self, keys: KeySet) -> np.ndarray:
        """Removes keys; returns the rows [U] they had, −1 if unknown. Giving the rows back is the caller's."""
        rows = np.empty(len(keys), dtype=np.int64)
        self._count -= kernels.remove(self.slots, keys.ids, keys.offsets, rows)
        return rows

    def entries(self, table: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids [n], ascending, and rows [n] of one table: an order that does not depend on the history."""
        ids, rows = np.empty(self._count, dtype=np.int64), np.empty(self._count, dtype=np.int64)
        count = kernels.entries(self.slots, table, ids, rows)
        order = np.argsort(ids[:count])
        return ids[:count][order], rows[:count][order]

    def rows_in_use(self, bound: int) -> np.ndarray:
        """[bound] bool: which of the rows below `bound` belong to a key."""
        marks = np.zeros(bound, dtype=bool)
        kernels.mark_rows(self.slots, marks)
        return marks

    def flagged(self, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, tables and rows [n] of the keys whose row is flagged, by (table, id). flags: [rows] bool."""
        count = int(np.count_nonzero(flags))
        ids, tables, rows = (np.empty(count, dtype=np.int64) for _ in range(3))
        count = kernels.flagged(self.slots, flags, ids, tables, rows)
        order = np.lexsort((ids[:count], tables[:count]))
        return ids[order], tables[order], rows[order]

    def reserve(self, keys: int) -> None:
        """Grows at once to what `keys` keys need."""
        if (capacity := _capacity_for(keys)) > self.capacity:
            self._grow(capacity)

    def _count_unknown(self, keys: KeySet) -> int:
        return int((self.find(keys) < 0).sum())

    def _grow(self, capacity: int) -> None:
        grown = zeros(2 * capacity, np.int64)
        kernels.rehash(self.slots, grown)
        self.slots = grown


def _capacity_for(keys: int) -> int:
    """The smallest power of two that `keys` keys fill at most by half."""
    return max(_MIN_CAPACITY, 1 << (2 * keys - 1).bit_length())
