"""What a step has to do, before it is said when: tier, look-ahead, eviction. From it come stages and accesses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nestlab.errors import UserError
from nestlab.pipeline.accesses import Access, direct_accesses, dual_buffer_accesses, slot_cache_accesses
from nestlab.pipeline.schedule import Key, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestlab.embedding import EmbeddingStore
    from nestlab.techniques import Techniques

SPLIT = (Stage.POST, Stage.PLAN, Stage.RETRIEVE)  # what PREPARE does in one
MOST_DEPTH = 6

_ACCESSES = {"direct": direct_accesses, "dual_buffer": dual_buffer_accesses, "slot_cache": slot_cache_accesses}


@dataclass(frozen=True)
class Shape:
    """The part of the flags that a schedule depends on.

    Attributes:
        tier: the device tier.
        depth: batches in flight, 1 to 6. With six, PREPARE is split, each part with a look-ahead of its own.
        evicts: features lose their rows, in an EVICT of their own.
        foresees: the tier asks for the keys of batches that are not loaded yet (the `oracle` policy).
        split: POST, PLAN and RETRIEVE in place of PREPARE.

    Raises:
        UserError: a tier or a depth that there is not.
    """

    tier: str = "direct"
    depth: int = 1
    evicts: bool = False
    foresees: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        if self.tier not in _ACCESSES:
            raise UserError(f"schedule: no device tier '{self.tier}'; there are {', '.join(_ACCESSES)}")
        if not 1 <= self.depth <= MOST_DEPTH:
            raise UserError(f"schedule: pipeline_depth={self.depth}: it must be 1 to {MOST_DEPTH}")

    @classmethod
    def of(cls, techniques: Techniques) -> Shape:
        return cls(
            tier=techniques.device_tier,
            depth=techniques.pipeline_depth,
            evicts=techniques.evict != "none",
            foresees=techniques.device_tier == "slot_cache" and techniques.cache_policy == "oracle",
            split=techniques.pipeline_depth >= MOST_DEPTH,
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order of the plain loop."""
        return tuple(stage for stage in Stage if self._has(stage))

    @property
    def accesses(self) -> Callable[[Key], list[Access]]:
        """What each action of this step reads and writes."""
        return partial(_ACCESSES[self.tier], foresees=self.foresees)

    def check(self, store: EmbeddingStore) -> None:
        """Raises UserError where the store's tiers need another step than this one."""
        tier = store.options.device_tier
        if tier != self.tier:
            raise UserError(
                f"pipeline: the schedule is made for device_tier={self.tier}, and the store has {tier}; "
                "give both the same techniques"
            )
        if store.options.looks_ahead and not self.foresees:
            raise UserError(
                "pipeline: the store's cache_policy looks ahead, the schedule does not; give both the same techniques"
            )
        if (store.options.features.evict != "none") != self.evicts:
            raise UserError(
                f"pipeline: the store has evict={store.options.features.evict}, the schedule is made for "
                f"{'another' if self.evicts else 'none'}; give both the same techniques"
            )

    def _has(self, stage: Stage) -> bool:
        match stage:
            case Stage.PREPARE:
                return not self.split
            case Stage.POST | Stage.PLAN | Stage.RETRIEVE:
                return self.split
            case Stage.EVICT:
                return self.evicts
            case Stage.COMMIT | Stage.WRITEBACK:
                return self.tier != "direct"
            case Stage.CLIP | Stage.SYNC:
                return False
        return True
