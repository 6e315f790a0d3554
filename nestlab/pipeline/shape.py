"""What a step has to do, before it is said when: tier, look-ahead, parts. From it come stages and accesses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nestlab.errors import UserError
from nestlab.pipeline.accesses import Access, Asked, direct_accesses, dual_buffer_accesses, slot_cache_accesses
from nestlab.pipeline.schedule import Key, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from nestlab.embedding import EmbeddingStore
    from nestlab.techniques import Techniques

SPLIT = (Stage.POST, Stage.PLAN, Stage.RETRIEVE)  # what PREPARE does in one
# The stages that work on a micro-batch; the others concern the whole batch.
BY_PART = (Stage.EMB_EXCHANGE, Stage.FORWARD, Stage.BACKWARD, Stage.GRAD_EXCHANGE)
# Those that work on a group of tensor-train tables, forward and, in the groups' reverse order, backward.
BY_GROUP = (Stage.TT_FORWARD, Stage.TT_EXCHANGE, Stage.TT_GRAD_EXCHANGE, Stage.TT_BACKWARD)


@dataclass(frozen=True)
class Family:
    """Stages that go part by part in the plain loop, `turn` 1 from the first part on, −1 from the last one back."""

    stages: tuple[Stage, ...]
    turn: int = 1


FAMILIES = (Family(BY_GROUP[:2]), Family(BY_PART), Family(BY_GROUP[2:], -1))
LOOK_UP = tuple(list(Stage)[: list(Stage).index(Stage.EMB_EXCHANGE) + 1])  # what a batch's rows come by
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
        micro_batches: N, the parts of a batch between whose exchanges and computations FWP overlaps.
        staleness: k, the updates that a look-up lags behind; 0: none. The dense part never lags.
        sync_every: replicas are averaged by SYNC after each so many batches; 0: there are no replicas.
        clips: gradients are clipped by their global norm, in a CLIP of its own.
        table_groups: groups of tensor-train tables that are computed and exchanged in turn; 0: no such table.
        replicated_cores: every rank has all cores, and their gradients are summed over the ranks.
        in_order: one part after the other, nothing overlaps: what FWP is compared with, bit by bit.
        builder: what makes the schedule: auto, the suite's own, or one from outside (`nestlab.plugins`).

    Raises:
        UserError: a tier or a number that there is not, or options that exclude each other.
    """

    tier: str = "direct"
    depth: int = 1
    evicts: bool = False
    foresees: bool = False
    split: bool = False
    micro_batches: int = 1
    staleness: int = 0
    sync_every: int = 0
    clips: bool = False
    table_groups: int = 0
    replicated_cores: bool = False
    in_order: bool = False
    builder: str = "auto"

    def __post_init__(self) -> None:
        if self.tier not in _ACCESSES:
            raise UserError(f"schedule: no device tier '{self.tier}'; there are {', '.join(_ACCESSES)}")
        if not 1 <= self.depth <= MOST_DEPTH:
            raise UserError(f"schedule: pipeline_depth={self.depth}: it must be 1 to {MOST_DEPTH}")
        for name, least in (("micro_batches", 1), ("staleness", 0), ("sync_every", 0), ("table_groups", 0)):
            if getattr(self, name) < least:
                raise UserError(f"schedule: {name}={getattr(self, name)}: it must be at least {least}")
        if self.in_order and self.depth > 1:
            raise UserError(f"schedule: pipeline_depth={self.depth} overlaps batches; in order it must be 1")
        if self.staleness:
            self._check_staleness()
        if self.table_groups and (self.staleness or self.sync_every):
            raise UserError(
                "schedule: cores of tensor-train tables are read as the update before left them, and have no replica "
                "groups; give staleness=0 and replica_groups=1"
            )

    def _check_staleness(self) -> None:
        k = self.staleness
        if self.tier != "direct":
            raise UserError(
                f"schedule: staleness={k} reads host rows; device_tier={self.tier} has none to read: direct"
            )
        if self.depth <= k:
            raise UserError(f"schedule: staleness={k} needs pipeline_depth of at least {k + 1}, and it is {self.depth}")
        if self.sync_every:
            raise UserError(
                f"schedule: staleness={k} has look-ups in flight at every step, and replicas are averaged with none; "
                "give staleness=0 or replica_groups=1"
            )

    @classmethod
    def of(cls, techniques: Techniques, clips: bool = False) -> Shape:
        replicas = techniques.replica_groups > 1
        return cls(
            tier=techniques.device_tier,
            depth=techniques.pipeline_depth,
            evicts=techniques.evict != "none",
            foresees=techniques.device_tier == "slot_cache" and techniques.cache_policy == "oracle",
            split=techniques.pipeline_depth >= MOST_DEPTH,
            micro_batches=techniques.micro_batches,
            staleness=techniques.staleness,
            sync_every=techniques.replica_every if replicas else 0,
            clips=clips,
            table_groups=techniques.table_groups if techniques.table_kind == "tt" else 0,
            replicated_cores=techniques.tt_cores == "replicated",
            builder=techniques.schedule,
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order of the plain loop."""
        return tuple(stage for stage in Stage if self.has(stage))

    @property
    def accesses(self) -> Callable[[Key], list[Access]]:
        """What each action of this step reads and writes."""
        return partial(_ACCESSES[self.tier], asked=Asked(self.foresees, bool(self.sync_every), self.table_groups))

    @property
    def least_depth(self) -> int:
        """What a depth schedule may go down to: a stale look-up comes so many batches ahead."""
        return self.staleness + 1

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
        if bool(store.whole.configs) != bool(self.table_groups):
            raise UserError(
                f"pipeline: the store has {len(store.whole.configs)} tensor-train tables, the schedule is made for "
                f"{'some' if self.table_groups else 'none'}; table_kind=tt goes with tables that have tensor_train"
            )
        if (store.options.features.evict != "none") != self.evicts:
            raise UserError(
                f"pipeline: the store has evict={store.options.features.evict}, the schedule is made for "
                f"{'another' if self.evicts else 'none'}; give both the same techniques"
            )

    def has(self, stage: Stage) -> bool:
        """Whether a step of this shape has such an action."""
        match stage:
            case Stage.PREPARE:
                return not self.split
            case Stage.POST | Stage.PLAN | Stage.RETRIEVE:
                return self.split
            case Stage.EVICT:
                return self.evicts
            case Stage.COMMIT | Stage.WRITEBACK:
                return self.tier != "direct"
            case Stage.CLIP:
                return self.clips
            case Stage.TT_FORWARD | Stage.TT_EXCHANGE | Stage.TT_GRAD_EXCHANGE | Stage.TT_BACKWARD:
                return self.table_groups > 0
            case Stage.CORE_REDUCE:
                return self.replicated_cores and self.table_groups > 0
            case Stage.SYNC:
                return self.sync_every > 0
        return True
