"""Required edges with parts, staleness, replicas and clipping: table and derivation imply each other; none is spare."""

from __future__ import annotations

import threading
from functools import cache

import pytest
from recording import TIERS, Recorded, built, carry_out, shape_id

from nestlab.pipeline import Edge, InvalidSchedule, Lane, Lanes, Schedule, Shape, Stage, validate
from nestlab.pipeline.derivation import derive, plain_order, required_pairs
from nestlab.pipeline.edges import table, table_pairs
from nestlab.pipeline.ordering import Reach
from nestlab.pipeline.validator import demands

BATCHES = 8
CHAINED = "one order of collectives"
FORMS = [
    shape
    for tier in TIERS
    for parts in (1, 3)
    for shape in (
        Shape(tier, micro_batches=parts, in_order=True),
        Shape(tier, micro_batches=parts, clips=True),
        Shape(tier, 5, micro_batches=parts),
        Shape(tier, 5, micro_batches=parts, sync_every=3, clips=True),
        Shape(tier, 6, micro_batches=parts, evicts=True, split=True, sync_every=1),
        *(Shape(tier, k + 2, micro_batches=parts, staleness=k) for k in (1, 2) if tier == "direct"),
    )
]
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)


@cache
def order(shape: Shape) -> tuple:
    return tuple(plain_order(built(shape).entries, BATCHES, shape.staleness))


@cache
def derived(shape: Shape) -> tuple:
    return tuple(required_pairs(order(shape), shape.accesses))


@cache
def demanded(shape: Shape) -> list:
    return demands(built(shape), shape.accesses, BATCHES)


@by_form
def test_table_implies_derivation(shape):
    """Broken on purpose: the table without BACKWARD → BACKWARD of the part before, or without SYNC → POST."""
    by_hand = Reach(order(shape), table_pairs(built(shape), table(shape), BATCHES))
    assert [f"{a} → {b}" for a, b in derived(shape) if not by_hand.comes_before(a, b)] == []


@by_form
def test_derivation_implies_table(shape):
    """Broken on purpose: accesses where CLIP writes nothing, or where SYNC does not touch the key index."""
    found = Reach(order(shape), derived(shape))
    pairs = table_pairs(built(shape), table(shape), BATCHES)
    assert [f"{a} → {b}" for a, b in pairs if not found.comes_before(a, b)] == []


@by_form
def test_every_row_of_the_table_is_laid_over_the_schedule(shape):
    for row in table(shape):
        assert table_pairs(built(shape), [row], BATCHES), row


@by_form
def test_templates_hold_for_every_batch(shape):
    """The templates, laid out on a longer window, imply every pair derived there from scratch."""
    schedule, longer = built(shape).required_only(), 12
    keys = plain_order(schedule.entries, longer, shape.staleness)
    data = schedule.without(*(edge for edge in schedule.edges if edge.reason.startswith(CHAINED)))
    laid = Reach(keys, data.pairs(longer))
    assert all(laid.comes_before(a, b) for a, b in required_pairs(keys, shape.accesses))


@by_form
def test_each_required_edge_is_missed(shape):
    """Taken away one by one; what the order of collectives implies as well is taken away together with that.

    SYNC comes after every third batch: after every second it would stand between any two that are two batches apart.
    """
    schedule = built(shape).required_only()
    validate(schedule, shape.accesses)
    chained = [edge for edge in schedule.edges if edge.reason.startswith(CHAINED)]
    assert len(schedule.edges) >= 16
    for edge in schedule.edges:
        fewer = schedule.without(edge)
        gone = fewer if _missed(fewer, shape, edge) else fewer.without(*chained)
        assert _missed(gone, shape, edge), edge


def _missed(schedule: Schedule, shape: Shape, edge: Edge) -> bool:
    """The validator rejects the schedule and names what the edge orders."""
    try:
        validate(schedule, shape.accesses, BATCHES, demanded(shape))
    except InvalidSchedule as refused:
        return any(f"missing: {edge.source}(" in each and f"→ {edge.target}(" in each for each in refused.problems)
    return False


@pytest.mark.parametrize("tier", TIERS)
def test_chosen_edges_do_not_hide_what_is_missing(tier):
    """In a prefetched schedule as it is executed, back-pressure and all, nearly every missing edge is seen."""
    shape = Shape(tier, 5)
    required = [edge for edge in built(shape).edges if edge.required]
    unseen = [edge for edge in required if not _missed(built(shape).without(edge), shape, edge)]
    assert len(unseen) <= 2, unseen


def test_an_action_on_a_lane_of_its_own():
    """`on_lane` moves an action and nothing else, so that a lane's order does not hide what is missing."""
    shape = Shape("direct", micro_batches=3)
    schedule = built(shape)
    moved = schedule.on_lane(Stage.BACKWARD)
    assert moved.edges == schedule.edges and Lane.EXTRA in moved.lanes and Lane.EXTRA not in schedule.lanes
    one = schedule.on_lane(Stage.BACKWARD, Lane.COPY, part=1)
    changed = [entry for entry, other in zip(one.entries, schedule.entries, strict=True) if entry != other]
    assert [(entry.stage, entry.part, entry.lane) for entry in changed] == [(Stage.BACKWARD, 1, Lane.COPY)]
    validate(moved, shape.accesses)

    into = [edge for edge in schedule.edges if edge.source is Stage.FORWARD and edge.target is Stage.BACKWARD]
    recorded = Recorded(4)
    carry_out(schedule.without(*into), Lanes(), recorded)
    assert not recorded.broken(schedule)  # the lane's order hides it
    recorded = Recorded(4, during=_wait_in_forward())
    carry_out(moved.without(*into), Lanes(), recorded)
    assert any("FORWARD" in broken and "BACKWARD" in broken for broken in recorded.broken(schedule))


def _wait_in_forward():
    """FORWARD(0,0) waits until BACKWARD(0,0) is done: possible only where nothing orders them."""
    done = threading.Event()

    def during(key) -> None:
        if key.stage is Stage.FORWARD and key.batch == 0 and key.part == 0:
            assert done.wait(20)
        if key.stage is Stage.BACKWARD:
            done.set()

    return during


def test_derivation_alone_has_no_order_of_collectives():
    """Data do not force the rows of part i + 1 behind the gradients of part i: only the list's order does."""
    shape = Shape(micro_batches=3, in_order=True)
    edges = derive(built(shape).entries, shape.accesses)
    assert not [edge for edge in edges if edge.source is Stage.GRAD_EXCHANGE and edge.target is Stage.EMB_EXCHANGE]
