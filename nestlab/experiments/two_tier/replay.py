"""A stream through the planner of the slot cache: which rows hit, which are swapped. No record is there to move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nestlab.embedding import KeySet
from nestlab.embedding.device.look_ahead import Foresight, LookAhead, ahead
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.device.swap import SwapPlan
from nestlab.experiments.two_tier.key_streams import KeyStream

LOOK_AHEAD = 200  # batches, as the flag look_ahead has it
ORACLE = "oracle"
POLICIES = ("clock", "lru", "lfu", ORACLE)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # of the distinct rows of a stream


@dataclass(frozen=True, eq=False)
class Replay:
    """What a policy did with a stream.

    Attributes:
        hits: unique keys whose row was resident.
        came: [batches] int64: rows swapped in, by batch.
        left: [batches] int64: rows swapped out.
    """

    hits: int
    came: np.ndarray
    left: np.ndarray


def slots_for(stream: KeyStream, share: float) -> int:
    """The slots of a cache of that share of a stream's distinct rows."""
    return math.ceil(share * stream.distinct)


def replay(stream: KeyStream, slots: int, policy: str, foresights: Sequence[Foresight] | None = None) -> Replay:
    """Plans every batch of a stream. `foresights`: of the oracle, as `foresee` gives them.

    Raises:
        CacheTooSmall: some batch and the one before need more than `slots`.
    """
    made = list(plans(stream, slots, policy, foresights))
    came = np.array([plan.misses for plan in made], dtype=np.int64)
    left = np.array([plan.out_rows.size for plan in made], dtype=np.int64)
    return Replay(sum(plan.hits for plan in made), came, left)


def plans(
    stream: KeyStream, slots: int, policy: str, foresights: Sequence[Foresight] | None = None
) -> Iterator[SwapPlan]:
    """The swap plan of each batch."""
    slot_map = SlotMap(slots, policy, LOOK_AHEAD, row_limit=max(1, stream.distinct))
    if policy == ORACLE and foresights is None:
        foresights = foresee(stream)
    for number, rows in enumerate(stream.batches):
        yield slot_map.plan(rows, foresight=foresights[number] if policy == ORACLE else None)


def foresee(stream: KeyStream, length: int = LOOK_AHEAD) -> list[Foresight]:
    """What a queue of keys of that length knows of each batch. It hangs on the stream alone, not on the cache."""
    queue = LookAhead(length)
    keysets = (KeySet(rows, [0, rows.size]) for rows in stream.batches)
    # A row that the table has not given out yet is resident nowhere, so that its number tells nothing too early.
    return [queue.advance(keys, lambda found: found.ids) for keys in ahead(keysets, length, queue.foresee, queue.end)]
