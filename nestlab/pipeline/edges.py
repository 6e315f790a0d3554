"""Required edges: derived from declared reads and writes, and, beside them, the table written by hand.

The two check each other (a test shows that each implies the other): the derivation finds what the table forgot, the
table finds what an access failed to declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx

from nestlab.pipeline.accesses import Access
from nestlab.pipeline.schedule import Edge, Entry, Key, Schedule, Stage

Accesses = Callable[[Key], list[Access]]

# A hazard that a window of this many batches does not show would need an edge over more batches than any technique has.
WINDOW = 6

# Row by row: source, delta (source batch − target batch), target, reason. Parts are those of the schedule at hand.
EVERY_TIER = (
    Edge(Stage.LOAD, Stage.LOAD, -1, reason="RW the loader's position"),
    Edge(Stage.LOAD, Stage.H2D, reason="RAW the raw batch"),
    Edge(Stage.LOAD, Stage.ROUTE, reason="RAW ids (the host copy)"),
    Edge(Stage.H2D, Stage.FORWARD, reason="RAW dense features, labels"),
    Edge(Stage.ROUTE, Stage.PREPARE, reason="RAW keys"),
    Edge(Stage.ROUTE, Stage.EMB_EXCHANGE, reason="RAW part lists, split sizes"),
    Edge(Stage.ROUTE, Stage.GRAD_EXCHANGE, reason="RAW part lists, split sizes"),
    Edge(Stage.ROUTE, Stage.FORWARD, reason="RAW global weight, positions"),
    Edge(Stage.PREPARE, Stage.EMB_EXCHANGE, reason="RAW rows of the keys, new ones initialised"),
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
    Edge(Stage.PREPARE, Stage.PREPARE, -1, reason="WAW key index, host arena"),
    Edge(Stage.UPDATE, Stage.RELEASE, reason="WAR rows in use"),
)
DIRECT = (Edge(Stage.UPDATE, Stage.EMB_EXCHANGE, -1, reason="RAW host rows"),)


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
