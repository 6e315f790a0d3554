"""Shuffling within windows of consecutive rows: each window is read once, from front to back, and dealt out in another
order.

A full shuffle reaches all over the table for every batch; this reads as a pass in order does, and copies each row once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

WINDOW_ROWS = 1 << 16  # about; a window is a whole number of batches


@dataclass(frozen=True)
class Windows:
    """Rows `first` … `stop` − 1 of a table, cut into windows of `batches` batches of `size` rows.

    The order within a window hangs on (seed, epoch, number of the window): not on ranks, nor on where a pass begins.
    """

    table: pa.Table
    first: int
    stop: int
    size: int
    seed: int
    epoch: int

    @property
    def batches(self) -> int:
        return max(1, WINDOW_ROWS // self.size)

    def parts(
        self, begin: int, end: int, part_of: Callable[[int], tuple[int, int]]
    ) -> Iterator[tuple[pa.Table, list[np.ndarray]]]:
        """For batches `begin` … `end` − 1, window by window: its rows, and of each batch the places of its rows there.

        `part_of(batch)`: which places of the epoch's order are wanted.
        """
        for window in range(begin // self.batches, -(-end // self.batches)):
            batches = range(max(begin, window * self.batches), min(end, (window + 1) * self.batches))
            start = window * self.batches * self.size
            rows = min(self.batches * self.size, self.stop - self.first - start)
            order = np.random.default_rng([self.seed, self.epoch, window]).permutation(rows)
            wanted = [part_of(batch) for batch in batches]
            # In one piece: without a copy, unless a border between two chunks lies within.
            whole = self.table.slice(self.first + start, rows).combine_chunks()
            yield whole, [order[a - start : b - start] for a, b in wanted]
