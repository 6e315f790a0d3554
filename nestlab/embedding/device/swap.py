"""What the swap planner decides, as data: which rows of a batch come into which slots, and which rows leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nestlab.errors import UserError

_SHOWN = 6  # rows a list that `str` shows


class CacheTooSmall(UserError):
    """The rows of the batches in flight do not fit the device tier.

    Attributes:
        needed: |K(t) ∪ K(t−1)|, the smallest capacity that works.
        capacity: what there is.
    """

    def __init__(self, needed: int, capacity: int, what: str = "slot cache") -> None:
        self.needed, self.capacity = needed, capacity
        super().__init__(
            f"{what} too small: the rows of this batch and of the one before are {needed:,} and there are {capacity:,} "
            f"slots; give cache_slots={needed} or more, a share of the rows in use, or smaller batches"
        )


@dataclass(frozen=True, eq=False)
class SwapPlan:
    """The swaps of one batch: decided by `SlotMap.plan`, carried out by the tier.

    All arrays are numpy int64. A slot that is taken from a row appears in `in_slots` and in `out_slots`: its old record
    has to be read before the new one is written.

    Attributes:
        number: of the plan, from 0.
        slots: [U] the slot of each row of the batch; −1 for a refused id, which has none.
        in_at: [m] the misses: positions in the batch's rows, ascending.
        in_slots: [m] the slots that they get.
        out_rows: [v ≤ m] rows that leave and have to be written back.
        out_slots: [v] where their records lie.
        refused: how many ids of the batch have no row.
    """

    number: int
    slots: np.ndarray
    in_at: np.ndarray
    in_slots: np.ndarray
    out_rows: np.ndarray
    out_slots: np.ndarray
    refused: int = 0

    @property
    def misses(self) -> int:
        """Rows that were not resident."""
        return self.in_at.size

    @property
    def hits(self) -> int:
        """Rows that were resident."""
        return self.slots.size - self.misses - self.refused

    @property
    def nbytes(self) -> int:
        """Bytes of the plan itself."""
        arrays = (self.slots, self.in_at, self.in_slots, self.out_rows, self.out_slots)
        return sum(array.nbytes for array in arrays)

    def __str__(self) -> str:
        came = (f"[{at}]→{slot}" for at, slot in zip(self.in_at, self.in_slots, strict=True))
        left = (f"{row}←{slot}" for row, slot in zip(self.out_rows, self.out_slots, strict=True))
        return (
            f"plan {self.number}: {self.hits} hits, {self.misses} misses, {self.refused} refused; "
            f"in {_few(came, self.misses)}; out {_few(left, self.out_rows.size)}"
        )


def _few(items: Iterable[str], count: int) -> str:
    shown = [item for item, _ in zip(items, range(_SHOWN), strict=False)]
    rest = [f"and {count - len(shown)} more"] if count > len(shown) else []
    return " ".join([*shown, *rest]) or "none"
