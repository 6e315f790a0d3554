"""What a store remembers of its last checkpoint, so that the next one can hold what has changed since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.embedding.keyset import KeySet

_SMALLEST = 1 << 16  # keys


@dataclass(frozen=True)
class SavePoint:
    """The last save of a store.

    Attributes:
        digest: of that save, as its manifest has it: an increment continues this one and no other.
        batches: the store's count of training batches then; rows seen later have changed.
    """

    digest: str
    batches: int


class KeyLog:
    """Keys of one group to which something happened: evicted since the last save, trained since replicas last met.

    A key that comes ten times takes the place of one.
    """

    def __init__(self, tables: int) -> None:
        self._runs: list[list[np.ndarray]] = [[] for _ in range(tables)]
        self._size, self._limit = 0, _SMALLEST

    def append(self, keys: KeySet) -> None:
        for table, runs in enumerate(self._runs):
            ids = keys.ids[keys.offsets[table] : keys.offsets[table + 1]]
            if ids.size:
                runs.append(ids)
                self._size += ids.size
        if self._size > self._limit:
            self._compact()

    def ids(self, table: int) -> np.ndarray:
        """[n] int64, ascending: the ids of one table, whether they have come back or not."""
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._runs[table]]))

    def _compact(self) -> None:
        self._runs = [[self.ids(table)] for table in range(len(self._runs))]
        self._size = sum(runs[0].size for runs in self._runs)
        self._limit = max(_SMALLEST, 2 * self._size)
