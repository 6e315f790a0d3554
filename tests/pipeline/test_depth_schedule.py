"""Depth over time: a change of depth keeps every edge, plans every action once, and drains nothing."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recorded, built, carry_out, shape_id, whole

from nestlab.errors import UserError
from nestlab.pipeline import Inline, Key, Lanes, Shape, Shuffled, Stage
from nestlab.pipeline.depths import at_depth, ramp
from nestlab.pipeline.executors import Progress
from nestlab.pipeline.validator import check_list_order

FORMS = [
    Shape("direct", 5),
    Shape("dual_buffer", 5, micro_batches=3),
    Shape("dual_buffer", 6, evicts=True, split=True),
    Shape("slot_cache", 2, clips=True),
    Shape("slot_cache", 5, micro_batches=2),
    Shape("slot_cache", 6, evicts=True, foresees=True, split=True),
    Shape("direct", 6, split=True, sync_every=3),
    Shape("dual_buffer", 5, sync_every=2, micro_batches=2),
    Shape("slot_cache", 6, evicts=True, split=True, sync_every=1),
    Shape("direct", 6, staleness=2, micro_batches=2),
]
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)
depths = st.lists(st.integers(1, 7), min_size=1, max_size=12)


def of_steps(shape: Shape, given_depths: list[int]):
    """Step → depth, going round in the list, never less than the shape allows."""
    return lambda step: max(shape.least_depth, given_depths[step % len(given_depths)])


@by_form
def test_list_order_is_valid_at_every_depth(shape):
    """`build` has checked it; here the entries are looked at too: fewer batches ahead, nothing lost."""
    schedule = built(shape)
    for depth in range(shape.least_depth, shape.depth + 1):
        less = at_depth(schedule, depth)
        check_list_order(less)
        assert {(e.stage, e.part, e.lane) for e in less.entries} == {
            (e.stage, e.part, e.lane) for e in schedule.entries
        }
        assert less.most_ahead == min(schedule.most_ahead, depth - 1)
    assert at_depth(schedule, shape.depth) is schedule or schedule.most_ahead == shape.depth - 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), depths, st.integers(0, 14))
def test_list_order_obeys_every_edge_whatever_the_changes(shape, given_depths, batches):
    """Broken on purpose: where each entry plans all its batches at once, a rise of the depth puts PREPARE(t+1) of a
    slot cache before WRITEBACK(t)."""
    schedule, recorded = built(shape), Recorded(batches)
    assert carry_out(schedule, Inline(), recorded, of_steps(shape, given_depths)) == list(range(batches))
    assert not recorded.broken(schedule)
    done = [key for key in recorded.ended if key.batch < batches]
    assert len(done) == len(set(done)) and set(done) == whole(schedule, batches)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(FORMS), depths, st.integers(0, 10**6), st.integers(0, 10))
def test_no_order_hangs(shape, given_depths, seed, batches):
    schedule = built(shape)
    for executor in (Lanes(), Shuffled(seed), Shuffled(seed, 3)):
        recorded = Recorded(batches)
        assert carry_out(schedule, executor, recorded, of_steps(shape, given_depths)) == list(range(batches))
        assert not recorded.broken(schedule)


@by_form
@pytest.mark.parametrize("given_depths", [[1], [3], [1, 1, 1, 5, 5, 5, 5, 2, 2, 6, 1]], ids=str)
def test_no_more_is_loaded_than_the_depth_in_force_allows(shape, given_depths):
    """LOAD(t) is planned in the first step s with t ≤ s + depth(s) − 1, and done before the update of the next step."""
    depth, recorded = of_steps(shape, given_depths), Recorded(14)
    carry_out(built(shape), Inline(), recorded, depth)
    ahead = max(entry.ahead for entry in built(shape).entries)
    planned = 0
    for step in range(14):
        loaded = max(key.batch for key in recorded.at_begin[Key(Stage.UPDATE, step)] if key.stage is Stage.LOAD)
        before, planned = planned, max(planned, step + min(ahead, depth(step) - 1))
        assert min(before, 13) <= loaded <= min(planned, 13)
        if depth(step) <= depth(max(step - 1, 0)):  # no rise: all of it comes before the step's computation
            assert loaded == min(planned, 13)


def test_a_change_drains_nothing():
    """From five to three: two steps load nothing, and what was loaded goes on; from three to five: two more are loaded,
    behind the computation of the step that asks for them."""
    schedule, recorded = built(Shape("dual_buffer", 5)), Recorded(20)
    carry_out(schedule, Inline(), recorded, lambda step: 3 if 6 <= step < 10 else 5)
    loads: dict[int, list[int]] = {}
    for key in recorded.of(Stage.LOAD):
        loads.setdefault(recorded.updates_at(key), []).append(key.batch)
    assert loads[5] == [9] and 6 not in loads and 7 not in loads and loads[8] == [10] and loads[11] == [13, 14, 15]


def test_lanes_run_ahead_again_after_a_rise():
    """LOAD of a batch beyond the next meets the computation: the deeper steps overlap as if they had always been."""
    meeting = threading.Barrier(2, timeout=20)

    def during(key: Key) -> None:
        if key in (Key(Stage.FORWARD, 8, 0), Key(Stage.LOAD, 12)):
            meeting.wait()

    recorded = Recorded(14, during=during)
    assert carry_out(built(Shape("dual_buffer", 5)), Lanes(), recorded, ramp(5, 7)) == list(range(14))


def test_an_epoch_begins_at_the_depth_of_its_first_step():
    schedule = built(Shape("direct", 5))
    progress, recorded = Progress(schedule, Inline(), ramp(5, 40)), Recorded(11)
    while progress.advance(recorded) is not None:
        pass
    recorded.batches, recorded.began = 30, []
    progress.advance(recorded)
    assert [key.batch for key in recorded.began if key.stage is Stage.LOAD] == [11, 12]  # the depth is 2 at step 11


def test_ramp_rises_in_equal_stretches_and_stays():
    rising = ramp(5, 8)
    assert [rising(step) for step in range(10)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [ramp(1, 10)(step) for step in (0, 99)] == [1, 1]
    assert [ramp(4, 1)(step) for step in range(3)] == [1, 4, 4]
    assert rising(10**12) == 5
    with pytest.raises(UserError, match="both must be at least 1"):
        ramp(5, 0)


def test_a_depth_that_stale_rows_forbid():
    with pytest.raises(ValueError, match="step 0: depth 1, and the schedule needs at least 3"):
        Progress(built(Shape("direct", 6, staleness=2, micro_batches=2)), Inline(), lambda step: 1)
