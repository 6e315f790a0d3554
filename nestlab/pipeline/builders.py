"""One small builder a technique: it lists the step's entries and chosen edges; the required edges are derived."""

from __future__ import annotations

from itertools import pairwise

from nestlab.pipeline.accesses import direct_accesses
from nestlab.pipeline.edges import derive
from nestlab.pipeline.schedule import Edge, Entry, Lane, Schedule, Stage
from nestlab.pipeline.validator import validate
from nestlab.techniques import Techniques

LANES = {
    Stage.LOAD: Lane.LOAD,
    Stage.H2D: Lane.COPY,
    Stage.ROUTE: Lane.ROUTE,
    Stage.PREPARE: Lane.FETCH,
    Stage.EMB_EXCHANGE: Lane.COMM,
    Stage.FORWARD: Lane.COMPUTE,
    Stage.BACKWARD: Lane.COMPUTE,
    Stage.GRAD_EXCHANGE: Lane.COMM,
    Stage.DENSE_REDUCE: Lane.COMM,
    Stage.UPDATE: Lane.COMPUTE,
    Stage.RELEASE: Lane.FETCH,
}
# The stages that work on a micro-batch; the others concern the whole batch.
BY_PART = (Stage.EMB_EXCHANGE, Stage.FORWARD, Stage.BACKWARD, Stage.GRAD_EXCHANGE)


def build(techniques: Techniques) -> Schedule:
    """The schedule of a set of flags, validated.

    Raises:
        InvalidSchedule: a builder's edges do not keep the plain loop's results.
    """
    schedule = plain(techniques)
    validate(schedule, direct_accesses)
    return schedule


def plain(techniques: Techniques) -> Schedule:
    """Everything in order, one batch at a time: the reference."""
    entries = tuple(Entry(stage, LANES[stage], 0 if stage in BY_PART else -1) for stage in Stage)
    return Schedule("plain", entries, _merge(derive(entries, direct_accesses), in_order(entries)))


def in_order(entries: tuple[Entry, ...]) -> tuple[Edge, ...]:
    """Chosen edges that chain a step's entries, and its end to the next step's begin."""
    chain = [_chosen(a, b) for a, b in pairwise(entries)]
    return (*chain, _chosen(entries[-1], entries[0], delta=-1))


def _chosen(source: Entry, target: Entry, delta: int = 0) -> Edge:
    return Edge(source.stage, target.stage, delta, source.part, target.part, required=False, reason="order")


def _merge(required: tuple[Edge, ...], chosen: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Required edges first; a chosen one that repeats a required one says nothing new."""
    known = [(e.source, e.source_part, e.delta, e.target, e.target_part) for e in required]
    extra = [e for e in chosen if (e.source, e.source_part, e.delta, e.target, e.target_part) not in known]
    return (*required, *extra)
