"""Which rows of a group are in use, and when each was last seen."""

from __future__ import annotations

from collections import deque

import numpy as np

from nestlab.embedding.host.arena import zeros
from nestlab.embedding.record_kernels import stamp
from nestlab.errors import UserError

# Batches before the row that an evicted key gives up can be another key's. What was in flight when it was evicted may
# still write to it (hazards 4 and 5 of docs/design.md 4.2): those batches must be released as well.
QUARANTINE = 2


class Rows:
    """Row numbers: dense, given out in order, reused last in, first out.

    Attributes:
        allocator: [2] int64: rows ever given out, rows now in the free list (the kernels change it).
        free: [≥ allocator[1]] int64: rows to be reused, last one first.
        last_seen: [capacity] int32: the number of the last training batch that asked for the row.
    """

    def __init__(self, capacity: int, record_bytes: int, remedy: str = "use a machine with more memory") -> None:
        self.capacity, self.record_bytes, self.remedy = capacity, record_bytes, remedy
        self.allocator = np.zeros(2, dtype=np.int64)
        self.free = np.empty(0, dtype=np.int64)
        self.last_seen = zeros(capacity, np.int32)
        self._quarantined: deque[tuple[int, np.ndarray]] = deque()

    @property
    def used(self) -> int:
        """Rows in use, those in quarantine included."""
        return int(self.allocator[0] - self.allocator[1])

    @property
    def ever(self) -> int:
        """Rows ever given out: every row is below it."""
        return int(self.allocator[0])

    @property
    def available(self) -> int:
        """How many more rows can be given out."""
        return self.capacity - self.used

    def seen(self, rows: np.ndarray, number: int) -> None:
        """Training batch `number` asks for rows [U]; −1 are passed by."""
        stamp(self.last_seen, rows, number)

    def give_back(self, rows: np.ndarray) -> None:
        """Puts rows [n] into the free list."""
        used = int(self.allocator[1])
        if used + rows.size > self.free.size:
            grown = np.empty(max(2 * self.free.size, used + rows.size, 1024), dtype=np.int64)
            grown[:used] = self.free[:used]
            self.free = grown
        self.free[used : used + rows.size] = rows
        self.allocator[1] += rows.size

    def quarantine(self, rows: np.ndarray, number: int) -> None:
        """Rows [n] whose keys were evicted after batch `number`: a write-back to them may be on its way."""
        if rows.size:
            self._quarantined.append((number, rows))

    def leave_quarantine(self, number: int, oldest: int) -> np.ndarray:
        """The rows that batch `number` may reuse, now in the free list; `oldest` is the oldest batch in flight."""
        free = [np.empty(0, dtype=np.int64)]
        while self._quarantined and self._may_leave(self._quarantined[0][0], number, oldest):
            free.append(self._quarantined.popleft()[1])
        rows = np.concatenate(free)
        self.give_back(rows)
        return rows

    @staticmethod
    def _may_leave(evicted_after: int, number: int, oldest: int) -> bool:
        return evicted_after + QUARANTINE <= number and evicted_after < oldest

    def exhausted(self, needed: int) -> UserError:
        """The error for a request of `needed` rows that do not fit."""
        return UserError(
            f"no room for {needed:,} more rows of {self.record_bytes} bytes: {self.used:,} of at most "
            f"{self.capacity:,} are in use; {self.remedy}, or use a smaller dim or an admission threshold"
        )
