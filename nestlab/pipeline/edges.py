"""The table of required edges, written by hand: beside those derived from reads and writes (derivation.py).

The two check each other (a test shows that each implies the other): the derivation finds what the table forgot, the
table finds what an access failed to declare.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nestlab.pipeline.schedule import Edge, Key, Schedule, Stage
from nestlab.pipeline.shape import BY_GROUP, BY_PART, SPLIT, Shape

BEFORE = -2  # the source's part, where it is the one before the target's

# Row by row: source, delta (source batch − target batch), target, reason. Within a batch a row holds part by part (and
# with BEFORE from each part to the next); to or from the whole batch or another batch it holds for all parts. PREPARE
# stands here as POST, PLAN and RETRIEVE; `folded` gives the table of a schedule that has it in one.
EVERY_TIER = (
    Edge(Stage.LOAD, Stage.LOAD, -1, reason="RW the loader's position"),
    Edge(Stage.LOAD, Stage.H2D, reason="RAW the raw batch"),
    Edge(Stage.LOAD, Stage.ROUTE, reason="RAW ids (the host copy)"),
    Edge(Stage.H2D, Stage.FORWARD, reason="RAW dense features, labels"),
    Edge(Stage.ROUTE, Stage.POST, reason="RAW keys"),
    Edge(Stage.ROUTE, Stage.EMB_EXCHANGE, reason="RAW part lists, split sizes"),
    Edge(Stage.ROUTE, Stage.GRAD_EXCHANGE, reason="RAW part lists, split sizes"),
    Edge(Stage.ROUTE, Stage.FORWARD, reason="RAW global weight, positions"),
    Edge(Stage.POST, Stage.POST, -1, reason="WAW key index, admission counts"),
    Edge(Stage.POST, Stage.PLAN, reason="RAW rows of the keys"),
    Edge(Stage.PLAN, Stage.PLAN, -1, reason="WAW slot map"),
    Edge(Stage.PLAN, Stage.RETRIEVE, reason="RAW what is to be fetched, and where to"),
    Edge(Stage.RETRIEVE, Stage.RETRIEVE, -1, reason="WAW host frames, host arena"),
    Edge(Stage.RETRIEVE, Stage.EMB_EXCHANGE, reason="RAW rows of the keys, new ones initialised"),
    Edge(Stage.EMB_EXCHANGE, Stage.FORWARD, reason="RAW rows of the part"),
    Edge(Stage.FORWARD, Stage.BACKWARD, reason="RAW autograd graph"),
    Edge(Stage.FORWARD, Stage.FORWARD, -1, reason="random numbers, module buffers"),
    Edge(Stage.BACKWARD, Stage.GRAD_EXCHANGE, reason="RAW row gradients"),
    Edge(Stage.BACKWARD, Stage.DENSE_REDUCE, reason="RAW dense gradients"),
    Edge(Stage.DENSE_REDUCE, Stage.UPDATE, reason="RAW reduced gradients"),
    Edge(Stage.GRAD_EXCHANGE, Stage.UPDATE, reason="RAW summed row gradients: the frozen window"),
    Edge(Stage.UPDATE, Stage.FORWARD, -1, reason="RAW dense weights"),
    Edge(Stage.UPDATE, Stage.BACKWARD, -1, reason="WAW gradient buffers (emptied by UPDATE)"),
    Edge(Stage.UPDATE, Stage.UPDATE, -1, reason="WAW optimizer state"),
    Edge(Stage.UPDATE, Stage.RELEASE, reason="WAR rows in use"),
)
EVICTION = (
    Edge(Stage.POST, Stage.EVICT, reason="WAW key index: a feature is evicted on counts that include t"),
    Edge(Stage.PLAN, Stage.EVICT, reason="WAW slot map"),
    Edge(Stage.EVICT, Stage.POST, -1, reason="WAW key index: the same decisions as the plain loop"),
)
FORESIGHT = (Edge(Stage.ROUTE, Stage.ROUTE, -1, reason="WAW the queue of keys known ahead"),)
PARTS = (
    Edge(Stage.FORWARD, Stage.FORWARD, 0, BEFORE, reason="random numbers, module buffers"),
    Edge(Stage.BACKWARD, Stage.BACKWARD, 0, BEFORE, reason="WAW order in which dense gradients are added up"),
    Edge(Stage.GRAD_EXCHANGE, Stage.GRAD_EXCHANGE, 0, BEFORE, reason="WAW order in which row gradients are added up"),
)
CLIPPING = (
    Edge(Stage.DENSE_REDUCE, Stage.CLIP, reason="RAW reduced gradients"),
    Edge(Stage.GRAD_EXCHANGE, Stage.CLIP, reason="RAW summed row gradients"),
    Edge(Stage.CLIP, Stage.UPDATE, reason="RAW clipped gradients"),
)
REPLICAS = (  # all lies still but what no table is asked for: LOAD, H2D, ROUTE
    Edge(Stage.RELEASE, Stage.RELEASE, -1, reason="pins end in batch order"),
    Edge(Stage.RELEASE, Stage.SYNC, reason="RAW the replica's newest rows, none in use"),
    Edge(Stage.SYNC, Stage.POST, -1, reason="WAW key index"),
    Edge(Stage.SYNC, Stage.RETRIEVE, -1, reason="RAW averaged host rows"),
    Edge(Stage.SYNC, Stage.EMB_EXCHANGE, -1, reason="RAW averaged rows"),
)
REPLICAS_ABOVE = (  # where a device tier holds the newest records
    Edge(Stage.WRITEBACK, Stage.SYNC, reason="WAW host rows"),
    Edge(Stage.SYNC, Stage.COMMIT, -1, reason="RAW averaged rows of the buffer or the slots"),
)
REPLICAS_EVICTION = (Edge(Stage.EVICT, Stage.SYNC, reason="WAW key index"),)
DIRECT = (Edge(Stage.UPDATE, Stage.EMB_EXCHANGE, -1, reason="RAW host rows"),)
DUAL_BUFFER = (  # the buffer of t is the one of t − 2
    Edge(Stage.RETRIEVE, Stage.COMMIT, reason="WAW buffer: commit overwrites what is stale"),
    Edge(Stage.UPDATE, Stage.COMMIT, -1, reason="RAW newest rows of K(t) ∩ K(t−1)"),
    Edge(Stage.COMMIT, Stage.EMB_EXCHANGE, reason="RAW buffer holds the newest"),
    Edge(Stage.UPDATE, Stage.WRITEBACK, reason="RAW updated rows"),
    Edge(Stage.WRITEBACK, Stage.RETRIEVE, -2, reason="RAW host rows of t−2 (in t−2 and t, not t−1); WAR buffer"),
    Edge(Stage.COMMIT, Stage.RETRIEVE, -1, reason="WAR commit of t−1 reads the buffer that t overwrites"),
    Edge(Stage.EMB_EXCHANGE, Stage.RETRIEVE, -2, reason="WAR buffer"),
    Edge(Stage.WRITEBACK, Stage.WRITEBACK, -1, reason="WAW host rows in both: the older must not land last"),
    Edge(Stage.WRITEBACK, Stage.RELEASE, reason="WAR rows in use"),
)
SLOT_CACHE = (  # victims of t outside K(t) ∪ K(t−1)
    Edge(Stage.RETRIEVE, Stage.COMMIT, reason="RAW staging, plan"),
    Edge(Stage.UPDATE, Stage.COMMIT, -2, reason="RAW a victim's last update (last used by t−2); WAR its slot"),
    Edge(Stage.COMMIT, Stage.COMMIT, -1, reason="WAW slots"),
    Edge(Stage.COMMIT, Stage.EMB_EXCHANGE, reason="RAW rows swapped in"),
    Edge(Stage.UPDATE, Stage.EMB_EXCHANGE, -1, reason="RAW resident rows"),
    Edge(Stage.COMMIT, Stage.WRITEBACK, reason="RAW swap-out staging"),
    Edge(Stage.WRITEBACK, Stage.RETRIEVE, -1, reason="RAW host rows: out at t−1 and in at t"),
    Edge(Stage.WRITEBACK, Stage.WRITEBACK, -1, reason="WAW host rows"),
    Edge(Stage.WRITEBACK, Stage.RELEASE, reason="WAR rows in use"),
)
TABLE_WISE = (  # a row between two of them holds group by group; to or from a micro-batch for all groups
    Edge(Stage.POST, Stage.TT_FORWARD, reason="RAW sorted rows of all ranks, at the table's owner"),
    Edge(Stage.ROUTE, Stage.TT_EXCHANGE, reason="RAW split sizes"),
    Edge(Stage.ROUTE, Stage.TT_GRAD_EXCHANGE, reason="RAW split sizes"),
    Edge(Stage.UPDATE, Stage.TT_FORWARD, -1, reason="RAW cores"),
    Edge(Stage.TT_FORWARD, Stage.TT_EXCHANGE, reason="RAW rows of the group's tables"),
    Edge(Stage.TT_EXCHANGE, Stage.FORWARD, reason="RAW pooled rows"),
    Edge(Stage.BACKWARD, Stage.TT_GRAD_EXCHANGE, reason="RAW gradients of pooled rows"),
    Edge(Stage.TT_GRAD_EXCHANGE, Stage.TT_BACKWARD, reason="RAW gradients of the group's tables"),
    Edge(Stage.TT_BACKWARD, Stage.UPDATE, reason="RAW core gradients; WAR cores"),
    Edge(Stage.UPDATE, Stage.TT_BACKWARD, -1, reason="WAW core gradients (emptied by UPDATE)"),
)
REPLICATED_CORES = (
    Edge(Stage.TT_BACKWARD, Stage.CORE_REDUCE, reason="RAW core gradients"),
    Edge(Stage.CORE_REDUCE, Stage.UPDATE, reason="RAW reduced core gradients"),
)
TABLE_WISE_CLIPPING = (Edge(Stage.TT_BACKWARD, Stage.CLIP, reason="RAW core gradients"),)
REPLICATED_CLIPPING = (Edge(Stage.CORE_REDUCE, Stage.CLIP, reason="RAW reduced core gradients"),)
_TABLES = {"direct": DIRECT, "dual_buffer": DUAL_BUFFER, "slot_cache": SLOT_CACHE}


def stale(k: int) -> tuple[Edge, ...]:
    """In place of DIRECT: a look-up sees the updates up to t−k−1, and none later; the dense part is synchronous."""
    later = (
        Edge(Stage.EMB_EXCHANGE, Stage.UPDATE, j, reason="WAR host rows: no later update") for j in range(1, k + 1)
    )
    return (Edge(Stage.UPDATE, Stage.EMB_EXCHANGE, -k - 1, reason="RAW host rows, k updates late"), *later)


def table(shape: Shape) -> tuple[Edge, ...]:
    """The hand-written table of a step: what concerns every tier, its tier's rows, and those of its options."""
    rows = EVERY_TIER + (stale(shape.staleness) if shape.staleness else _TABLES[shape.tier])
    if shape.evicts:
        rows += EVICTION
    if shape.foresees:
        rows += FORESIGHT
    if shape.micro_batches > 1:
        rows += PARTS
    if shape.clips:
        rows += CLIPPING
    if shape.table_groups:
        rows += TABLE_WISE + REPLICATED_CORES * shape.replicated_cores
        if shape.clips:
            rows += REPLICATED_CLIPPING if shape.replicated_cores else TABLE_WISE_CLIPPING
    if shape.sync_every:
        rows += REPLICAS + REPLICAS_ABOVE * (shape.tier != "direct") + REPLICAS_EVICTION * shape.evicts
    return rows if shape.split else folded(rows)


def folded(rows: Iterable[Edge]) -> tuple[Edge, ...]:
    """The same table where PREPARE is one action: an edge within it is gone, equal ones are one."""
    found: dict[tuple, Edge] = {}
    for row in rows:
        source, target = (Stage.PREPARE if stage in SPLIT else stage for stage in (row.source, row.target))
        if source is not target or row.delta or row.source_part == BEFORE:
            found.setdefault((source, target, row.delta, row.source_part), replace(row, source=source, target=target))
    return tuple(found.values())


def table_pairs(schedule: Schedule, table: Iterable[Edge], batches: int) -> list[tuple[Key, Key]]:
    """The hand-written templates, laid over a schedule's actions."""
    there: dict[tuple[Stage, int], list[Key]] = {}
    for action in schedule.unroll(batches):
        there.setdefault((action.key.stage, action.key.batch), []).append(action.key)
    return [
        (source, target)
        for edge in table
        for batch in range(batches)
        for target in there.get((edge.target, batch), ())
        for source in there.get((edge.source, batch + edge.delta), ())
        if _meet(edge, source, target)
    ]


def _meet(edge: Edge, source: Key, target: Key) -> bool:
    """Whether a row holds between these parts."""
    if edge.source_part == BEFORE:
        return source.part == target.part - 1
    by_part = any(source.stage in family and target.stage in family for family in (BY_PART, BY_GROUP))
    return edge.delta != 0 or not by_part or source.part == target.part
