"""One order of collectives a channel, on every rank: required edges, kept where order and back-pressure are dropped."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recording import TIERS, Recorded, built, carry_out, reach, shape_id

from nestlab.exchange import Channel
from nestlab.pipeline import Inline, InvalidSchedule, Lanes, Shape, Shuffled, Stage, validate
from nestlab.pipeline.derivation import CHANNELS
from nestlab.pipeline.validator import check_collectives, collectives

FORMS = [
    *(Shape(tier, clips=True, micro_batches=parts, in_order=True) for tier in TIERS for parts in (1, 3)),
    *(Shape(tier, micro_batches=3, clips=True, sync_every=2) for tier in TIERS),
    *(Shape(tier, 5, micro_batches=parts, sync_every=2) for tier in TIERS for parts in (1, 4)),
    Shape(depth=4, staleness=2, micro_batches=3, clips=True),
    Shape(depth=6, staleness=1, split=True),
]
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)


@by_form
def test_required_edges_make_one_order_of_each_channel(shape):
    """Broken on purpose: without `collective_order` nothing orders ROUTE(t) after ROUTE(t−1)."""
    loose = built(shape).required_only()
    order = reach(loose, 8)
    found = collectives(loose, 8)
    assert {channel for channel, keys in found.items() if keys} == {
        CHANNELS[stage] for stage in shape.stages if stage in CHANNELS
    }
    for keys in found.values():
        assert all(order.comes_before(a, b) for a, b in pairwise(keys))
    check_collectives([loose] * 3)


@example(Shape(depth=4, micro_batches=3, staleness=2, clips=True), 0, 1, 1)  # ends before the look-ahead is filled
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 7))
def test_every_execution_has_the_same_order(shape, seed, window, batches):
    """Ranks that draw different orders, or whose lanes run at different speeds, still meet in every collective."""
    schedule, orders = built(shape), []
    for executor, made in (
        (Inline(), schedule),
        (Lanes(), schedule),
        (Shuffled(seed, window), schedule.required_only()),
        (Shuffled(seed + 1, window), schedule.required_only()),
    ):
        recorded = Recorded(batches)
        carry_out(made, executor, recorded)
        orders.append({c: [key for key in recorded.ended if CHANNELS.get(key.stage) is c] for c in Channel})
    keys = [{channel: [k for k in order if k.batch < batches] for channel, order in each.items()} for each in orders]
    assert all(each == keys[0] for each in keys)


@by_form
def test_each_of_its_edges_is_missed(shape):
    schedule = built(shape).required_only()
    chained = [edge for edge in schedule.edges if edge.reason.startswith("one order of collectives")]
    assert [edge for edge in chained if edge.source is edge.target is Stage.ROUTE]
    for edge in chained:
        with pytest.raises(InvalidSchedule, match=r"one order of collectives"):
            validate(schedule.without(edge), shape.accesses)
        with pytest.raises(InvalidSchedule, match=r"one order of collectives"):
            check_collectives([schedule, schedule.without(edge)])


def test_an_order_that_differs_between_ranks_is_rejected():
    """Parts in order and parts that overlap are each right; together they wait for each other for ever."""
    one, other = built(Shape(micro_batches=3, in_order=True)), built(Shape(micro_batches=3))
    check_collectives([one, one])
    check_collectives([other, other])
    with pytest.raises(
        InvalidSchedule, match=r"rank 1 has EMB_EXCHANGE\(0,1\) on channel 'rows' where rank 0 has GRAD"
    ):
        check_collectives([one, other])


def test_a_collective_that_one_rank_lacks_is_rejected():
    with pytest.raises(InvalidSchedule, match=r"rank 2 has CLIP\(0\) on channel 'dense' where rank 0 has DENSE_RED"):
        check_collectives([built(Shape()), built(Shape()), built(Shape(clips=True))])
    synced, alone = built(Shape(sync_every=2)), built(Shape())
    with pytest.raises(InvalidSchedule, match="rank 1 has 0 collectives on channel 'replicas', rank 0 has"):
        check_collectives([synced, alone])
    often = built(Shape(sync_every=3))
    with pytest.raises(InvalidSchedule, match=r"rank 1 has SYNC\(2\) on channel 'replicas' where rank 0 has SYNC\(1\)"):
        check_collectives([synced, often])


def test_two_depths_have_one_order():
    """Depth is each step's own affair: it moves no collective past another of its channel."""
    check_collectives([built(Shape("dual_buffer", depth, micro_batches=3)) for depth in (1, 2, 5)])


def test_a_channel_in_reach_of_no_edge_is_rejected():
    schedule = built(Shape())
    bare = replace(schedule, edges=())
    with pytest.raises(InvalidSchedule, match=r"ROUTE\(0\) → ROUTE\(1\) \(one order"):
        check_collectives([bare])
