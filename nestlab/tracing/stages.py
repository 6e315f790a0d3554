"""Which stage belongs to which part of a step: look-up, communication, loading."""

from __future__ import annotations

from nestlab.tracing.exposed import OVERHEAD

# Groups of stages; what stands nowhere is "other", so that the parts sum to the idle time.
#
# `lookup` is all that happens to keys and rows before the exchange: routing (its All2All of keys included; it also
# stands apart, as KEYS), the store's PREPARE in one or in three, COMMIT and EVICT; and WRITEBACK and RELEASE, which
# are seen only where a later look-up has to wait for them. H2D is loading: it moves samples, not rows.
GROUPS: dict[str, tuple[str, ...]] = {
    "lookup": ("ROUTE", "PREPARE", "POST", "PLAN", "RETRIEVE", "EVICT", "COMMIT", "WRITEBACK", "RELEASE"),
    "rows": ("EMB_EXCHANGE", "GRAD_EXCHANGE", "TT_EXCHANGE", "TT_GRAD_EXCHANGE"),
    "dense": ("DENSE_REDUCE", "CLIP", "CORE_REDUCE"),
    "replicas": ("SYNC",),
    "loader": ("LOAD", "H2D"),
    "overhead": (OVERHEAD,),
    "other": (),
}
COMMUNICATION = ("rows", "dense", "replicas")  # the groups that are communication; keys are part of the look-up
KEYS = "ROUTE"
WORLD, GROUP, SHARD = "world", "group", "shard"
# Stages that hold a collective, and among whom: all ranks, those of a replica group, those that hold one shard.
COLLECTIVES: dict[str, str] = {
    "ROUTE": WORLD,
    "EMB_EXCHANGE": GROUP,
    "GRAD_EXCHANGE": GROUP,
    "TT_EXCHANGE": GROUP,
    "TT_GRAD_EXCHANGE": GROUP,
    "CORE_REDUCE": WORLD,
    "DENSE_REDUCE": WORLD,
    "CLIP": WORLD,
    "SYNC": SHARD,
}
_GROUP_OF = {stage: group for group, stages in GROUPS.items() for stage in stages}


def group_of(stage: str) -> str:
    """The group of `GROUPS` that a stage belongs to."""
    return _GROUP_OF.get(stage, "other")
