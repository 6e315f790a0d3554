"""One small builder a technique: it lists the step's entries and chosen edges; the required edges are derived."""

from __future__ import annotations

from itertools import pairwise

from nestlab.pipeline.depths import at_depth
from nestlab.pipeline.derivation import required_edges
from nestlab.pipeline.ordering import list_order
from nestlab.pipeline.own_schedule import own_schedule
from nestlab.pipeline.schedule import WHOLE, Edge, Entry, Lane, Schedule, Stage
from nestlab.pipeline.shape import BY_GROUP, BY_PART, FAMILIES, Shape
from nestlab.pipeline.validator import check_list_order, validate
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
    Stage.TT_FORWARD: Lane.COMPUTE,
    Stage.TT_EXCHANGE: Lane.TABLES,
    Stage.EMB_EXCHANGE: Lane.COMM,
    Stage.FORWARD: Lane.COMPUTE,
    Stage.BACKWARD: Lane.COMPUTE,
    Stage.GRAD_EXCHANGE: Lane.COMM,
    Stage.TT_GRAD_EXCHANGE: Lane.TABLES,
    Stage.TT_BACKWARD: Lane.COMPUTE,
    Stage.CORE_REDUCE: Lane.REDUCE,
    Stage.DENSE_REDUCE: Lane.REDUCE,
    Stage.CLIP: Lane.REDUCE,
    Stage.UPDATE: Lane.COMPUTE,
    Stage.WRITEBACK: Lane.WRITE,
    Stage.RELEASE: Lane.FETCH,
    Stage.SYNC: Lane.COMM,  # between the last gradients of its batch and the first rows of the next
}
# With two buffers COMMIT(t+1), and with replicas PREPARE(t+1), stands behind RELEASE(t) in list order: on one lane it
# would wait for WRITEBACK(t), or for UPDATE(t).
_LANES_RELEASE_APART = {Stage.RELEASE: Lane.WRITE}

_COMPUTED = (Stage.TT_FORWARD, Stage.FORWARD, Stage.BACKWARD, Stage.TT_BACKWARD)
# What opens the window of a batch: rows of the first micro-batch, those of the first group of tables.
_WINDOW_BEGINS = (Stage.EMB_EXCHANGE, Stage.TT_FORWARD)

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
# Where replicas are averaged between two batches, what makes or places rows comes after it: one batch ahead at most.
_AHEAD_REPLICAS = {Stage.POST: 1, Stage.PLAN: 1, Stage.EVICT: 1}


def build(wanted: Techniques | Shape) -> Schedule:
    """The schedule of a set of flags, validated, its list order at every depth too.

    Raises:
        InvalidSchedule: a builder's edges do not keep the plain loop's results.
        UserError: see `Shape`.
    """
    shape = wanted if isinstance(wanted, Shape) else Shape.of(wanted)
    if shape.builder != "auto":
        return own_schedule(shape, plain(shape))
    schedule = _builder(shape)(shape)
    validate(schedule, shape.accesses)
    for depth in range(shape.least_depth, shape.depth):
        check_list_order(at_depth(schedule, depth))
    return schedule


def plain(shape: Shape) -> Schedule:
    """Everything in order, one batch at a time, one part after the other: the reference."""
    entries = _entries(shape, {})
    return Schedule("plain", entries, _merge(required_edges(entries, shape), in_order(entries)), shape)


def windowed(shape: Shape) -> Schedule:
    """The window of a batch alone: exchange of one part beside the computation of another, all else in order.

    Parts are micro-batches (NestPipe's frozen window, FWP) and, forward and backward, groups of tensor-train tables
    (EcoRec's pipeline of the embedding layer). DENSE_REDUCE runs beside the last gradient exchange. Nothing of a batch
    begins before the one before is released.
    """
    entries = overlapping(_entries(shape, {}))
    window = [i for i, entry in enumerate(entries) if entry.stage in (*BY_PART, *BY_GROUP)]
    begins = [next(entry for entry in entries if entry.stage is stage) for stage in _WINDOW_BEGINS if shape.has(stage)]
    before = entries[: window[0]]
    update = next(i for i, entry in enumerate(entries) if entry.stage is Stage.UPDATE)
    opened = [_chosen(before[-1], first) for first in begins]
    ends = {(before[-1].stage, Stage.UPDATE)}
    order = [edge for edge in in_order((*before, *entries[update:])) if (edge.source, edge.target) not in ends]
    edges = _merge(required_edges(entries, shape), (*order, *opened, *_part_by_part(entries)))
    return Schedule(_name(shape), entries, edges, shape)


def prefetched(shape: Shape) -> Schedule:
    """`shape.depth` batches in flight, those to come one stage apart (docs/design.md 4.4, `dbp`); FWP nested in it.

    A stage runs ℓ = min(its full look-ahead, depth − 1) batches ahead. What holds it back is UPDATE(t−ℓ−1) → s(t): the
    slot in the pipeline that batch t takes has to be free. For LOAD this is the bound on batches in flight.

    With staleness k the rows of a batch come k batches ahead and all stages before them as much earlier: the edges
    that this needs (see `nestlab.pipeline.edges.stale`) are derived from the order of the stale loop.
    """
    ahead = _look_ahead(shape)
    entries = overlapping(_entries(shape, ahead))
    chosen = tuple(
        Edge(Stage.UPDATE, stage, -ahead[stage] - 1, required=False, reason="back-pressure")
        for stage in shape.stages
        if stage in ahead and stage not in BY_PART  # rows are held back by required edges
    )
    edges = _merge(required_edges(entries, shape), (*chosen, *_part_by_part(entries)))
    return Schedule(_name(shape), list_order(entries, edges), edges, shape)


def in_order(entries: tuple[Entry, ...]) -> tuple[Edge, ...]:
    """Chosen edges that chain a step's entries, and its end to the next step's begin.

    What not every batch has is passed by: it is chained to its neighbours, and they to each other.
    """
    always = tuple(entry for entry in entries if entry.every == 1)
    chain = [_chosen(a, b) for a, b in pairwise(always)] + [_chosen(always[-1], always[0], delta=-1)]
    for a, b in pairwise((*entries, entries[0])):
        if 1 in (a.every, b.every) and a.every != b.every:
            chain.append(_chosen(a, b, delta=-1 if b is entries[0] else 0))
    return tuple(chain)


def overlapping(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The parts' stages in FWP's order: rows of part i + 1, then computation and gradients of part i.

    So the rows of two parts at most are there at once: the collectives' order lets those of part i + 2 come only after
    the gradients of part i, whatever the lanes do.
    """
    parts = [entry for entry in entries if entry.stage in BY_PART]
    number = {entry: entry.part - (entry.stage is Stage.EMB_EXCHANGE) for entry in parts}
    ordered = sorted(parts, key=lambda entry: (number[entry], BY_PART.index(entry.stage)))
    first = entries.index(parts[0])
    return (*entries[:first], *ordered, *entries[first + len(parts) :])


def _builder(shape: Shape):
    if shape.depth > 1:
        return prefetched
    return plain if shape.in_order or max(shape.micro_batches, shape.table_groups) == 1 else windowed


def _name(shape: Shape) -> str:
    parts = [
        (shape.staleness > 0, f"stale({shape.staleness})"),
        (shape.depth > 1, f"prefetched({shape.depth})"),
        (shape.micro_batches > 1, f"fwp({shape.micro_batches})"),
        (shape.table_groups > 1, f"turns({shape.table_groups})"),
    ]
    return "·".join(name for there, name in parts if there)


def _look_ahead(shape: Shape) -> dict[Stage, int]:
    k = shape.staleness
    full = (_AHEAD_SPLIT if shape.split else _AHEAD) | (_AHEAD_SLOTS if shape.tier == "slot_cache" else {})
    ahead = {stage: min(most + k, shape.depth - 1) for stage, most in full.items()}
    if shape.sync_every:
        ahead |= {stage: min(most, ahead[stage]) for stage, most in _AHEAD_REPLICAS.items() if stage in ahead}
    return ahead | ({Stage.EMB_EXCHANGE: k} if k else {})


def _entries(shape: Shape, ahead: dict[Stage, int]) -> tuple[Entry, ...]:
    """A step's entries in the order of the plain loop."""
    stages = list(shape.stages)
    places: list[tuple[Stage, int]] = []
    for stage in stages:
        family = next((each for each in FAMILIES if stage in each.stages), None)
        if family is None:
            places.append((stage, WHOLE))
        elif stage is family.stages[0]:
            count = shape.micro_batches if family.stages == BY_PART else shape.table_groups
            places += [(each, part) for part in range(count)[:: family.turn] for each in family.stages]
    return tuple(_entry(shape, stage, part, ahead.get(stage, 0)) for stage, part in places)


def _entry(shape: Shape, stage: Stage, part: int, ahead: int) -> Entry:
    apart = shape.sync_every or shape.tier == "dual_buffer"
    lanes = LANES | _LANES_RELEASE_APART if apart else LANES
    return Entry(stage, lanes[stage], part, ahead, shape.sync_every if stage is Stage.SYNC else 1)


def _part_by_part(entries: tuple[Entry, ...]) -> tuple[Edge, ...]:
    """A part is computed to its end before the next one begins: one part's activations at a time."""
    computed = [entry for entry in entries if entry.stage in _COMPUTED]
    return tuple(_chosen(a, b) for a, b in pairwise(computed))


def _chosen(source: Entry, target: Entry, delta: int = 0) -> Edge:
    ends = (source.stage, target.stage, delta, source.part, target.part)
    return Edge(*ends, required=False, reason="order", every=source.every)


def _merge(required: tuple[Edge, ...], chosen: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Required edges first; a chosen one that repeats a required one says nothing new."""
    known = {edge.ends for edge in required}
    return (*required, *(edge for edge in dict.fromkeys(chosen) if edge.ends not in known))
