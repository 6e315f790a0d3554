"""Rows of a log put into another order without holding them all: spooled to disk, then gathered piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from nestlab.data.loader import Gatherer

CHUNK = 1 << 19


class Spool:
    """An Arrow file that grows by blocks, and is then read by row number through a memory map.

    Memory: what the caller keeps of the rows (8 bytes a row and key), and a chunk.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            self._writer.write_table(table.combine_chunks())

    def finish(self) -> pa.Table:
        """Every row added, in the order of adding; no more can be added."""
        self._writer.close()
        self._file.close()
        return pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()


def in_order(table: pa.Table, order: np.ndarray, chunk: int = CHUNK) -> Iterator[tuple[int, pa.Table]]:
    """The rows `order` [n] int64 of a table, `chunk` at a time, each piece with the place of its first row."""
    gathered = Gatherer(table)
    for start in range(0, len(order), chunk):
        yield start, gathered(order[start : start + chunk])
