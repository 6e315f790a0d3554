"""The host tier of one group: key index, arena and initial values."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.arena import Arena
from nestlab.embedding.config import TableGroup
from nestlab.embedding.index import KeyIndex
from nestlab.embedding.initialisation import Initialiser
from nestlab.embedding.keyset import KeySet


class HostTier:
    """Records of one group in host memory, found by key.

    Every record that a key has ever had is here (the tier is inclusive): device tiers above hold copies.
    """

    def __init__(self, group: TableGroup, initialiser: Initialiser, dtype: torch.dtype) -> None:
        self.group = group
        self.index = KeyIndex(sum(table.initial_rows for table in group.tables))
        self.arena = Arena(group.record_width, dtype)
        self._initialiser = initialiser
        self._weights = self.arena.records[:, : group.dim]

    def find(self, keys: KeySet) -> np.ndarray:
        """[U] int64 rows, −1 for unknown keys. Changes nothing."""
        return self.index.find(keys)

    def find_or_insert(self, keys: KeySet) -> tuple[np.ndarray, int]:
        """Rows [U] int64 of the keys, and how many were new; a new key's record is initialised."""
        rows, fresh = self.index.find_or_insert(keys, self.arena)
        if fresh.size:
            self._initialiser.write(self.arena.array, rows[fresh], keys.ids[fresh], keys.tables(fresh))
        return rows, fresh.size

    def weights(self, rows: Tensor) -> Tensor:
        """[n, dim] copy of the weights at `rows` [n], all known.

        `index_select` over the record view, not a numba loop: the loop took five times as long on rows in DRAM.
        """
        return self._weights.index_select(0, rows)

    def weights_or_default(self, rows: Tensor, keys: KeySet, positions: np.ndarray) -> Tensor:
        """As `weights`, and what initialisation would give where a row is −1 (the key is keys[positions[i]])."""
        unknown = np.flatnonzero(rows.numpy() < 0)
        if not unknown.size:
            return self.weights(rows)
        values = self._weights.index_select(0, rows.clamp(min=0))
        at = positions[unknown]
        self._initialiser.write(values.numpy(), unknown, keys.ids[at], keys.tables(at))
        return values

    def export(self, table: int) -> dict[str, Tensor]:
        """ids [n] ascending, weight [n, dim] and state [n, s] of one table: a canonical order."""
        ids, rows = self.index.entries(table)
        records = self.arena.records.index_select(0, torch.from_numpy(rows))
        dim = self.group.dim
        return {
            "ids": torch.from_numpy(ids),
            "weight": records[:, :dim].contiguous(),
            "state": records[:, dim:].contiguous(),
        }
