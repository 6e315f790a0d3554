"""One small builder a technique: it lists the step's entries and chosen edges; the required edges are derived."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx

from nestlab.pipeline.edges import derive
from nestlab.pipeline.schedule import Edge, Entry, Lane, Schedule, Stage
from nestlab.pipeline.shape import Shape
from nestlab.pipeline.validator import validate
from nestlab.techniques import Techniques

LANES = {
    Stage.LOAD: Lane.LOAD,
    Stage.H2D: Lane.COPY,
    Stage.ROUTE: Lane.ROUTE,
    Stage.PREPARE: Lane.FETCH,
    Stage.POST: Lane.PLAN,
    Stage.PLAN: Lane.PLAN,
    Stage.RETRIEVE: Lane.FETCH,
    Stage.EVICT: Lane.PLAN,
    Stage.COMMIT: Lane.FETCH,
    Stage.EMB_EXCHANGE: Lane.COMM,
    Stage.FORWARD: Lane.COMPUTE,
    Stage.BACKWARD: Lane.COMPUTE,
    Stage.GRAD_EXCHANGE: Lane.COMM,
    Stage.DENSE_REDUCE: Lane.COMM,
    Stage.UPDATE: Lane.COMPUTE,
    Stage.WRITEBACK: Lane.WRITE,
    Stage.RELEASE: Lane.FETCH,
}
# The stages that work on a micro-batch; the others concern the whole batch.
BY_PART = (Stage.EMB_EXCHANGE, Stage.FORWARD, Stage.BACKWARD, Stage.GRAD_EXCHANGE)

# How far a stage runs ahead of the batch that is computed, where the depth allows: one batch a stage.
_AHEAD = {Stage.LOAD: 4, Stage.H2D: 3, Stage.ROUTE: 2, Stage.PREPARE: 1, Stage.EVICT: 1}
_AHEAD_SPLIT = {
    Stage.LOAD: 5,
    Stage.H2D: 4,
    Stage.ROUTE: 4,
    Stage.POST: 3,
    Stage.PLAN: 2,
    Stage.EVICT: 2,  # follows PLAN of its own batch
    Stage.RETRIEVE: 1,
}
# With victims outside K(t) ∪ K(t−1) swaps need not wait for the update of t−1; a buffer copy has to.
_AHEAD_SLOTS = {Stage.COMMIT: 1, Stage.WRITEBACK: 1}


def build(wanted: Techniques | Shape) -> Schedule:
    """The schedule of a set of flags, validated.

    Raises:
        InvalidSchedule: a builder's edges do not keep the plain loop's results.
    """
    shape = wanted if isinstance(wanted, Shape) else Shape.of(wanted)
    schedule = plain(shape) if shape.depth == 1 else prefetched(shape)
    validate(schedule, shape.accesses)
    return schedule


def plain(shape: Shape) -> Schedule:
    """Everything in order, one batch at a time: the reference."""
    entries = tuple(_entry(stage, 0) for stage in shape.stages)
    return Schedule("plain", entries, _merge(derive(entries, shape.accesses), in_order(entries)), shape)


def prefetched(shape: Shape) -> Schedule:
    """`shape.depth` batches in flight, those to come one stage apart (docs/design.md 4.4, `dbp`).

    A stage runs ℓ = min(its full look-ahead, depth − 1) batches ahead. What holds it back is UPDATE(t−ℓ−1) → s(t): the
    slot in the pipeline that batch t takes has to be free. For LOAD this is the bound on batches in flight.
    """
    ahead = _look_ahead(shape)
    entries = tuple(_entry(stage, ahead.get(stage, 0)) for stage in shape.stages)
    chosen = tuple(
        Edge(Stage.UPDATE, stage, -ahead[stage] - 1, required=False, reason="back-pressure")
        for stage in shape.stages
        if stage in ahead
    )
    edges = _merge(derive(entries, shape.accesses), chosen)
    return Schedule(f"prefetched({shape.depth})", list_order(entries, edges), edges, shape)


def in_order(entries: tuple[Entry, ...]) -> tuple[Edge, ...]:
    """Chosen edges that chain a step's entries, and its end to the next step's begin."""
    chain = [_chosen(a, b) for a, b in pairwise(entries)]
    return (*chain, _chosen(entries[-1], entries[0], delta=-1))


def list_order(entries: tuple[Entry, ...], edges: tuple[Edge, ...]) -> tuple[Entry, ...]:
    """The entries so that each comes after those of the same step that it waits for; else as they were.

    An edge stays within a step where the source's look-ahead is the target's plus the edge's delta.
    """
    place = {(entry.stage, entry.part): i for i, entry in enumerate(entries)}
    within = nx.DiGraph()
    within.add_nodes_from(range(len(entries)))
    for edge in edges:
        source, target = place[edge.source, edge.source_part], place[edge.target, edge.target_part]
        if edge.delta - entries[source].ahead == -entries[target].ahead:
            within.add_edge(source, target)
    return tuple(entries[i] for i in nx.lexicographical_topological_sort(within))


def _look_ahead(shape: Shape) -> dict[Stage, int]:
    full = (_AHEAD_SPLIT if shape.split else _AHEAD) | (_AHEAD_SLOTS if shape.tier == "slot_cache" else {})
    return {stage: min(ahead, shape.depth - 1) for stage, ahead in full.items()}


def _entry(stage: Stage, ahead: int) -> Entry:
    return Entry(stage, LANES[stage], 0 if stage in BY_PART else -1, ahead)


def _chosen(source: Entry, target: Entry, delta: int = 0) -> Edge:
    return Edge(source.stage, target.stage, delta, source.part, target.part, required=False, reason="order")


def _merge(required: tuple[Edge, ...], chosen: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Required edges first; a chosen one that repeats a required one says nothing new."""
    known = [(e.source, e.source_part, e.delta, e.target, e.target_part) for e in required]
    extra = [e for e in chosen if (e.source, e.source_part, e.delta, e.target, e.target_part) not in known]
    return (*required, *extra)
