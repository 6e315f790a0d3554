"""Where an id stands in a list of ids: what a join by position starts from."""

from __future__ import annotations

import numpy as np

_SLICE = 1 << 20
_DIRECT = 4  # a table by id is used while it has at most so many places an id
_BITMAP = 1 << 28


class Finder:
    """Finds ids among `keys` [N] int64, of which the first of equal ones counts.

    Ids that lie close together, as KuaiRand's do, are looked up in an int32 table by id (4 bytes an id from the
    smallest to the largest); others by binary search (12 bytes a key).
    """

    def __init__(self, keys: np.ndarray) -> None:
        n = len(keys)
        low, high = (int(keys.min()), int(keys.max())) if n else (0, -1)
        self._low = np.int64(low)
        self._direct = high - low < _DIRECT * n + _SLICE
        if self._direct:
            self._table = np.full(high - low + 1, -1, np.int32)
            for stop in range(n, 0, -_SLICE):  # backwards, so that the first of equal keys is written last
                start = max(0, stop - _SLICE)
                self._table[keys[start:stop][::-1] - self._low] = np.arange(stop - 1, start - 1, -1, dtype=np.int32)
        else:
            self._order = np.argsort(keys, kind="stable").astype(np.int32)
            self._sorted = keys[self._order]

    def positions(self, ids_n: np.ndarray) -> np.ndarray:
        """[n] int32; −1 where there is no such id."""
        if self._direct:
            # Modulo 2^64 an id below the smallest becomes a large distance.
            distance = (ids_n - self._low).view(np.uint64)
            inside = distance < len(self._table)
            if inside.all():
                return self._table[distance.view(np.int64)]
            position = np.full(len(ids_n), -1, np.int32)
            position[inside] = self._table[distance[inside].view(np.int64)]
            return position
        at = np.minimum(np.searchsorted(self._sorted, ids_n), len(self._sorted) - 1)
        return np.where(self._sorted[at] == ids_n, self._order[at], np.int32(-1))

    def repeated(self, keys: np.ndarray) -> np.ndarray:
        """Of the keys that this was made from: whether an equal one came before, [N] bool."""
        again = np.zeros(len(keys), bool)
        for start in range(0, len(keys), _SLICE):
            part = keys[start : start + _SLICE]
            again[start : start + len(part)] = self.positions(part) != np.arange(start, start + len(part))
        return again


class Distinct:
    """How many different ids were seen: a byte an id from 0 to the largest below 2^28; 8 bytes for any other."""

    def __init__(self) -> None:
        self._marks = np.zeros(0, bool)
        self._others = np.zeros(0, np.int64)

    def add(self, ids_n: np.ndarray) -> None:
        small = (ids_n >= 0) & (ids_n < _BITMAP)
        if not small.all():
            self._others = np.union1d(self._others, ids_n[~small])
            ids_n = ids_n[small]
        if not len(ids_n):
            return
        if (top := int(ids_n.max())) >= len(self._marks):
            longer = np.zeros(min(max(top + 1, 2 * len(self._marks)), _BITMAP), bool)
            longer[: len(self._marks)] = self._marks
            self._marks = longer
        self._marks[ids_n] = True

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self._marks)) + len(self._others)
