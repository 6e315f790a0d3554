"""Averaging replicas between two batches: alone with the tables when it comes, and out of the way when it does not."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import TIERS, Recorded, built, carry_out, shape_id, whole

from nestlab.pipeline import Inline, InvalidSchedule, Key, Lane, Lanes, Shape, Shuffled, Stage, validate

FORMS = [
    Shape(tier, depth, evicts=split, split=split, micro_batches=parts, sync_every=every)
    for tier in TIERS
    for depth, split, parts, every in ((1, False, 1, 2), (1, False, 3, 3), (5, False, 1, 3), (6, True, 2, 2))
] + [Shape("dual_buffer", 2, sync_every=1), Shape("slot_cache", 5, sync_every=100)]
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)
WITHOUT_TABLES = (Stage.LOAD, Stage.H2D, Stage.ROUTE)
BATCHES = 7


def executors(seed: int = 0):
    return [Inline(), Shuffled(seed), Shuffled(seed, 8), Lanes()]


@by_form
def test_it_is_alone_with_the_tables(shape):
    """All of the batches up to it is over, and of later ones nothing but LOAD, H2D and ROUTE has begun.

    Broken on purpose: without SYNC → POST a prefetched schedule has looked up or inserted keys by then.
    """
    for executor in executors():
        recorded = Recorded(BATCHES)
        assert carry_out(built(shape), executor, recorded) == list(range(BATCHES))
        syncs = recorded.of(Stage.SYNC)
        assert [key.batch for key in syncs] == list(range(shape.sync_every - 1, BATCHES, shape.sync_every))
        for sync in syncs:
            earlier = {key for key in whole(built(shape), sync.batch + 1) if key != sync}
            assert earlier <= recorded.at_begin[sync]
            begun = recorded.began[: recorded.began.index(sync)]
            assert all(key.stage in WITHOUT_TABLES for key in begun if key.batch > sync.batch)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 10**6), st.integers(0, 9))
def test_every_order_obeys_every_edge(shape, seed, batches):
    for schedule in (built(shape), built(shape).required_only()):
        for executor in (Inline(), Shuffled(seed, 5)) if schedule is built(shape) else (Shuffled(seed, 5),):
            recorded = Recorded(batches)
            assert carry_out(schedule, executor, recorded) == list(range(batches))
            assert not recorded.broken(schedule)


@pytest.mark.parametrize("tier", TIERS)
def test_other_steps_overlap_as_without_it(tier):
    """PREPARE(t+1) meets the computation of t where t is not averaged: list order and lanes leave it free.

    Broken on purpose: with RELEASE on PREPARE's lane the two never meet.
    """
    meeting = threading.Barrier(2, timeout=20)
    pairs = {Key(Stage.FORWARD, t, 0) for t in (3, 4)} | {Key(Stage.PREPARE, t + 1) for t in (3, 4)}  # SYNC: 2, 5

    def during(key: Key) -> None:
        if key in pairs:
            meeting.wait()

    recorded = Recorded(9, during=during)
    assert carry_out(built(Shape(tier, 5, sync_every=3)), Lanes(), recorded) == list(range(9))


@by_form
def test_entries_and_edges_are_there_every_so_often(shape):
    schedule = built(shape)
    (entry,) = [entry for entry in schedule.entries if entry.stage is Stage.SYNC]
    assert entry.every == shape.sync_every and entry.lane is Lane.COMM
    out = [edge for edge in schedule.edges if edge.source is Stage.SYNC]
    assert out and all(edge.every == shape.sync_every for edge in out)
    first_target = Stage.POST if shape.split else Stage.PREPARE
    key = Key(first_target, shape.sync_every)
    assert Key(Stage.SYNC, shape.sync_every - 1) in schedule.predecessors(key)
    if shape.sync_every > 1:
        assert all(source.stage is not Stage.SYNC for source in schedule.predecessors(key._replace(batch=1)))


@by_form
def test_no_edge_of_it_may_be_missing(shape):
    schedule = built(shape).required_only()
    own = [edge for edge in schedule.edges if Stage.SYNC in (edge.source, edge.target)]
    assert len(own) >= 2
    for edge in own:
        with pytest.raises(InvalidSchedule, match="SYNC"):
            validate(schedule.without(edge), shape.accesses)
