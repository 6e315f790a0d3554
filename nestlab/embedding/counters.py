"""What a store has done so far, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Sums since the start; `train=False` adds nothing. Keys are the unique ones of a batch.

    Attributes:
        batches: resolved for training: the store's own count of batches.
        known: keys that had a row.
        inserts: keys that were new and got one.
        refused: keys that admission refused.
        hits: keys whose row lay in the device tier.
        misses: keys whose row was fetched into it.
        writebacks: rows written back from the device tier to the host tier.
        evicted: keys that lost their row.
        bytes_in: records fetched into the device tier.
        bytes_out: records written back from it.
        bytes_gathered: weights handed to the forward pass.
        bytes_updated: records changed by the optimizer.
    """

    batches: int = 0
    known: int = 0
    inserts: int = 0
    refused: int = 0
    hits: int = 0
    misses: int = 0
    writebacks: int = 0
    evicted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_gathered: int = 0
    bytes_updated: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
