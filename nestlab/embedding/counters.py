"""What a store has done so far, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Sums since the start; `train=False` adds nothing.

    Attributes:
        batches: prepared for training.
        hits: unique keys of a batch that were known.
        inserts: unique keys of a batch that were new.
        bytes_gathered: weights handed to the forward pass.
        bytes_updated: records changed by the optimizer.
    """

    batches: int = 0
    hits: int = 0
    inserts: int = 0
    bytes_gathered: int = 0
    bytes_updated: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
