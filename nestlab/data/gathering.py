"""Scattered rows of a table, fetched in the order of storage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class Gatherer:
    """Fetches scattered rows of a table."""

    # Each chunk that a request touches costs a call a column; a request that touches more goes through the table.
    _FEW_CHUNKS = 64

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._chunks = table.to_batches()
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks], dtype=np.int64)

    def __call__(self, rows_b: np.ndarray) -> pa.Table:
        """The rows `rows_b` [B] int64, in that order, each column in one chunk."""
        # Fetched in the order of storage, for the sake of the page cache, then put into the order asked for.
        by_place = np.argsort(rows_b, kind="stable")
        back = np.empty_like(by_place)
        back[by_place] = np.arange(len(by_place))
        return self._sorted(rows_b[by_place]).combine_chunks().take(pa.array(back))

    def _sorted(self, rows_b: np.ndarray) -> pa.Table:
        borders = np.searchsorted(rows_b, self._ends)
        touched = np.flatnonzero(np.diff(borders, prepend=0))
        if len(touched) > self._FEW_CHUNKS:
            return self._table.take(pa.array(rows_b))
        starts = np.concatenate([[0], borders])
        firsts = np.concatenate([[0], self._ends])
        parts = [self._chunks[c].take(pa.array(rows_b[starts[c] : borders[c]] - firsts[c])) for c in touched]
        return pa.Table.from_batches(parts, self._table.schema)


def gather(table: pa.Table, rows_b: np.ndarray) -> pa.Table:
    """The rows `rows_b` [B] int64 of a table, in that order."""
    return Gatherer(table)(rows_b)
