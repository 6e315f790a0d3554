"""Lazy, deterministic initial values: a function of table name, id, seed and column, and of nothing else."""

from __future__ import annotations

import hashlib

import numpy as np

from nestlab.embedding import record_kernels
from nestlab.embedding.config import TableGroup


class Initialiser:
    """Initial records of one group.

    The salt of a table comes from its *name*, so that its values do not change when tables are added or regrouped.
    """

    def __init__(self, group: TableGroup, seed: int, state: float) -> None:
        self._dim, self._state = group.dim, float(state)
        self._salts = np.array([_salt(table.name, seed) for table in group.tables], dtype=np.uint64)
        self._bounds = np.array([table.bound for table in group.tables], dtype=np.float64)

    def write(self, records: np.ndarray, rows: np.ndarray, ids: np.ndarray, tables: np.ndarray) -> None:
        """Initial records into records[rows] ([N, width ≥ dim]); rows, ids and table numbers are [n] int64."""
        record_kernels.initialise(records, rows, ids, tables, self._salts, self._bounds, self._dim, self._state)


def _salt(name: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
