"""The end of the data and drains: found by LOAD on one rank, by ROUTE between ranks; the same place on every rank."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recorded, built, carry_out, shape_id, whole

from nestlab.pipeline import Inline, Key, Lanes, Shape, Shuffled, Stage
from nestlab.pipeline.executors import Progress

FORMS = [
    Shape(),
    Shape("dual_buffer", 5, micro_batches=2),
    Shape("slot_cache", 6, evicts=True, split=True, sync_every=2),
    Shape(depth=4, staleness=2),
]
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)


def executors(seed: int = 0):
    return [Inline(), Shuffled(seed), Shuffled(seed, 7), Lanes()]


@by_form
@pytest.mark.parametrize("batches", [0, 1, 2, 7])
def test_route_may_find_the_end(shape, batches):
    """Later batches are loaded by then, empty: they are dropped, and the next epoch begins with the same number."""
    for executor in executors():
        progress, recorded = Progress(built(shape), executor), Recorded(batches, ends_in=Stage.ROUTE)
        numbers = []
        while (number := progress.advance(recorded)) is not None:
            numbers.append(number)
        assert numbers == list(range(batches))
        assert {key for key in recorded.ended if key.batch < batches} == whole(built(shape), batches)
        assert {key.stage for key in recorded.ended if key.batch >= batches} <= {Stage.LOAD, Stage.H2D}
        again = Recorded(batches + 3, ends_in=Stage.ROUTE)
        assert progress.advance(again) == batches and Key(Stage.LOAD, batches) in again.ended
        progress.close()


def test_loads_and_copies_under_way_at_the_end_are_waited_for_and_dropped():
    """ROUTE(3) ends the data while LOAD(5) and H2D(4) are in their lanes.

    Broken on purpose: an execution that is over when the last batch is through leaves them running into the next epoch.
    """
    ended = threading.Event()
    late = {Key(Stage.LOAD, 5), Key(Stage.H2D, 4)}
    running = threading.Semaphore(0)

    def during(key: Key) -> None:
        if key in late:
            running.release()
            assert ended.wait(20)
        if key == Key(Stage.ROUTE, 3):
            assert all(running.acquire(timeout=20) for _ in late)
            threading.Timer(0.1, ended.set).start()

    recorded = Recorded(3, ends_in=Stage.ROUTE, during=during)
    assert carry_out(built(Shape("dual_buffer", 5)), Lanes(), recorded) == [0, 1, 2]
    assert late <= set(recorded.ended)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 10**6), st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1))
def test_a_drain_ends_after_the_last_planned_load(shape, seed, steps, depths):
    """The same batch whatever ran first: what is planned follows the steps alone.

    Broken on purpose: a drain that counts the loads that have ended differs between seeds and lanes.
    """

    def depth(step: int) -> int:
        return max(shape.least_depth, depths[step % len(depths)])

    ends = set()
    for executor in (Inline(), Shuffled(seed, 1), Shuffled(seed + 1, 1), Lanes()):
        progress, recorded = Progress(built(shape), executor, depth), Recorded(10**6)
        numbers = [progress.advance(recorded) for _ in range(steps)]
        progress.stop_loading()
        while (number := progress.advance(recorded)) is not None:
            numbers.append(number)
        assert numbers == list(range(len(numbers))) == [key.batch for key in sorted(recorded.of(Stage.LOAD))]
        assert set(recorded.ended) == whole(built(shape), len(numbers))
        ends.add(len(numbers))
        progress.close()
    assert len(ends) == 1


def test_a_drain_before_anything_was_asked_for():
    progress = Progress(built(Shape(depth=5)), Inline())
    progress.stop_loading()
    assert progress.advance(Recorded(3)) is None
    assert [progress.advance(recorded) for recorded in [Recorded(3)] * 4] == [0, 1, 2, None]


def test_a_source_that_ends_within_a_drain():
    """Planned loads are carried out; one that finds no more data ends the drain before its place."""
    for executor in (Inline(), Shuffled(4, 1), Lanes()):
        progress, recorded = Progress(built(Shape("dual_buffer", 5)), executor), Recorded(4)
        assert progress.advance(recorded) == 0
        progress.stop_loading()
        assert [progress.advance(recorded) for _ in range(4)] == [1, 2, 3, None]
