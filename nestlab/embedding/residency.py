"""Where the keys of one batch live between `prepare` and `release`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from nestlab.embedding.keyset import KeySet

NO_ROWS = np.empty(0, dtype=np.int64)


class Call(IntEnum):
    """The calls of a batch, in their order."""

    RESOLVE = 0
    PLAN = 1
    RETRIEVE = 2
    COMMIT = 3
    APPLY = 4
    WRITEBACK = 5
    RELEASE = 6


@dataclass(eq=False)
class GroupResidency:
    """One batch in one group of tables.

    Attributes:
        keys: U unique keys.
        rows: [U] int64; −1 for a key without a row: refused by admission, or unknown to an evaluation.
        fresh: [n] int64, positions of the keys whose rows are new: their records are unwritten before `retrieve`.
        number: of the training batch in the store's own count, from 1; for an evaluation that of the last one.
        train: False for evaluation, which changes nothing.
        in_use: keys of the group that have a row, this batch's included.
        rowless: [n] int64, positions of the keys without a row.
        work: what the device tier keeps of this batch between its calls.
    """

    keys: KeySet
    rows: np.ndarray
    fresh: np.ndarray
    number: int
    train: bool
    in_use: int = 0
    work: Any = None
    rowless: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.rowless = np.flatnonzero(self.rows < 0)

    @property
    def with_row(self) -> np.ndarray | slice:
        """What picks the keys that have a row, out of anything [U]."""
        return np.flatnonzero(self.rows >= 0) if self.rowless.size else slice(None)


@dataclass(eq=False)
class Residency:
    """What `EmbeddingStore.prepare` hands out and every later call for this batch takes.

    Attributes:
        batch: the batch's number, for messages.
        number: as in `GroupResidency`.
        tier: name of the device tier.
        groups: one entry a group of tables.
        train: False for evaluation, which changes nothing.
        done: the calls that have ended.
    """

    batch: int
    number: int
    tier: str
    groups: tuple[GroupResidency, ...]
    train: bool
    done: list[Call] = field(default_factory=list)

    @property
    def released(self) -> bool:
        return Call.RELEASE in self.done

    @property
    def nbytes(self) -> int:
        return sum(group.rows.nbytes for group in self.groups)

    def require_live(self, call: str) -> None:
        """Raises RuntimeError after `release`: the rows may belong to other keys by then."""
        if self.released:
            kind = "batch" if self.train else "evaluation batch"
            raise RuntimeError(f"{call}: the residency of {kind} {self.batch} (tier {self.tier}) is already released")
