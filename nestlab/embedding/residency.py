"""Where the keys of one batch live between `prepare` and `release`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nestlab.embedding.keyset import KeySet


@dataclass(eq=False)
class Residency:
    """What `EmbeddingStore.prepare` hands out and every later call for this batch takes.

    Attributes:
        batch: the batch's number, for messages.
        tier: name of the device tier.
        keys: one KeySet a group.
        rows: per group [U] int64, rows of the host tier; −1 for a key unknown to an evaluation.
        train: False for evaluation, which changes nothing.
    """

    batch: int
    tier: str
    keys: tuple[KeySet, ...]
    rows: tuple[Tensor, ...]
    train: bool
    released: bool = False

    def require_live(self, call: str) -> None:
        """Raises RuntimeError after `release`: the rows may belong to other keys by then."""
        if self.released:
            kind = "batch" if self.train else "evaluation batch"
            raise RuntimeError(f"{call}: the residency of {kind} {self.batch} (tier {self.tier}) is already released")
