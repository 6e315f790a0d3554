"""Required edges: derived from declared reads and writes, and, beside them, the table written by hand.

The two check each other (a test shows that each implies the other): the derivation finds what the table forgot, the
table finds what an access failed to declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import networkx as nx

from nestlab.pipeline.accesses import Access
from nestlab.pipeline.schedule import Edge, Entry, Key, Schedule, Stage
from nestlab.pipeline.shape import SPLIT, Shape

Accesses = Callable[[Key], list[Access]]

# A hazard that a window of this many batches does not show would need an edge over more batches than any technique has.
WINDOW = 6

# Row by row: source, delta (source batch − target batch), target, reason. Parts are those of the schedule at hand.
# PREPARE stands here as POST, PLAN and RETRIEVE; `folded` gives the table of a schedule that has it in one.
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
_TABLES = {"direct": DIRECT, "dual_buffer": DUAL_BUFFER, "slot_cache": SLOT_CACHE}


def table(shape: Shape) -> tuple[Edge, ...]:
    """The hand-written table of a step: what concerns every tier, its tier's rows, and those of its options."""
    rows = EVERY_TIER + _TABLES[shape.tier]
    if shape.evicts:
        rows += EVICTION
    if shape.foresees:
        rows += FORESIGHT
    return rows if shape.split else folded(rows)


def folded(rows: Iterable[Edge]) -> tuple[Edge, ...]:
    """The same table where PREPARE is one action: an edge within it is gone, equal ones are one."""
    found: dict[tuple[Stage, Stage, int], Edge] = {}
    for row in rows:
        source, target = (Stage.PREPARE if stage in SPLIT else stage for stage in (row.source, row.target))
        if source is not target or row.delta:
            found.setdefault((source, target, row.delta), replace(row, source=source, target=target))
    return tuple(found.values())


def required_pairs(keys: Iterable[Key], accesses: Accesses) -> list[tuple[Key, Key]]:
    """Every pair of conflicting actions, in the order of `keys`, which is that of the plain loop."""
    seen: list[tuple[Key, list[Access]]] = []
    pairs = []
    for key in keys:
        own = accesses(key)
        pairs += [(earlier, key) for earlier, others in seen if _conflict(others, own)]
        seen.append((key, own))
    return pairs


def derive(entries: tuple[Entry, ...], accesses: Accesses) -> tuple[Edge, ...]:
    """The required edges of a step as templates, without those that others imply, in a fixed order."""
    keys = plain_order(entries, WINDOW)
    reduced = nx.transitive_reduction(nx.DiGraph(required_pairs(keys, accesses)))
    last = WINDOW - 1  # by then every earlier batch an edge can come from is in the window
    found = [(source, target) for source, target in reduced.edges if target.batch == last]
    place = {key: i for i, key in enumerate(keys)}
    found.sort(key=lambda pair: (place[pair[1]], place[pair[0]]))
    return tuple(_template(source, target, accesses) for source, target in found)


def plain_order(entries: tuple[Entry, ...], batches: int) -> list[Key]:
    """Batch by batch, stage by stage, part by part: the order whose result every schedule must reproduce."""
    stages = list(Stage)
    within = sorted(entries, key=lambda e: (stages.index(e.stage), e.part))
    return [Key(entry.stage, batch, entry.part) for batch in range(batches) for entry in within]


def table_pairs(schedule: Schedule, table: Iterable[Edge], batches: int) -> list[tuple[Key, Key]]:
    """The hand-written templates, laid over a schedule's actions; a template holds for all parts of its stages."""
    keys = [action.key for action in schedule.unroll(batches)]
    return [
        (source, target)
        for edge in table
        for target in keys
        for source in keys
        if (edge.source, edge.target) == (source.stage, target.stage) and source.batch - target.batch == edge.delta
    ]


def _conflict(first: list[Access], second: list[Access]) -> bool:
    return any(a.conflicts(b) for a in first for b in second)


def _template(source: Key, target: Key, accesses: Accesses) -> Edge:
    shared = [a.resource.name for a in accesses(source) if _conflict([a], accesses(target))]
    return Edge(
        source.stage,
        target.stage,
        source.batch - target.batch,
        source.part,
        target.part,
        reason=", ".join(dict.fromkeys(shared)),
    )
