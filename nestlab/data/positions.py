"""Where an id's row stands in a feature table: what a join by position starts from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class Finder:
    """Finds ids in a feature table whose first column holds them, each once.

    Attributes:
        absent: how many of the ids looked up have no row there, repeats counted.
    """

    def __init__(self, table: pa.Table) -> None:
        keys = table.column(0).to_numpy()
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self.absent = 0
        self._known = np.zeros(len(keys), bool)
        self._unknown = np.zeros(0, np.int64)

    @property
    def distinct(self) -> int:
        """How many different ids were looked up."""
        return int(self._known.sum()) + len(self._unknown)

    def positions(self, ids_n: np.ndarray) -> np.ndarray:
        """[n] int32; −1 where the table has no such row."""
        at = np.minimum(np.searchsorted(self._keys, ids_n), max(len(self._keys) - 1, 0))
        found = self._keys[at] == ids_n if len(self._keys) else np.zeros(len(ids_n), bool)
        position = np.full(len(ids_n), -1, np.int32)
        position[found] = self._order[at[found]]
        self._known[position[found]] = True
        self._unknown = np.union1d(self._unknown, ids_n[~found])
        self.absent += int((~found).sum())
        return position
