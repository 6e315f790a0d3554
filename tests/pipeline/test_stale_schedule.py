"""Look-ups that lag behind: which updates a batch's rows see is the same in every execution, to the end of the data."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recording import Recorded, built, carry_out, reach, shape_id, whole

from nestlab.errors import UserError
from nestlab.pipeline import Inline, InvalidSchedule, Key, Lanes, Shape, Shuffled, Stage, build, validate
from nestlab.pipeline.executors import Progress

FORMS = [
    Shape(depth=2, staleness=1),
    Shape(depth=5, staleness=1, micro_batches=3, clips=True),
    Shape(depth=4, staleness=2, evicts=True),
    Shape(depth=6, staleness=3, micro_batches=2, evicts=True, split=True),
    Shape(depth=6, staleness=5),
]
EXECUTORS = {
    "inline": Inline,
    "shuffled": lambda: Shuffled(5),
    "shuffled 8": lambda: Shuffled(6, 8),
    "lanes": Lanes,
}
by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)


@by_form
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("batches", [0, 1, 4, 9])
def test_rows_are_k_updates_old_and_weights_are_not(shape, executor, batches):
    """Exactly t − k updates before the rows of t are read, exactly t before its computation; all batches come through.

    Broken on purpose: without the edge EMB_EXCHANGE(t+k) → UPDATE(t) random orders read rows too late. A ledger that
    waits for a batch beyond the end hangs in the last k batches.
    """
    schedule, recorded = built(shape), Recorded(batches)
    assert carry_out(schedule, EXECUTORS[executor](), recorded) == list(range(batches))
    assert whole(schedule, batches) == {key for key in recorded.ended if key.batch < batches}
    for key in recorded.ended:
        if key.stage is Stage.EMB_EXCHANGE and key.batch < batches:
            assert recorded.updates_at(key) == max(0, key.batch - shape.staleness)
        if key.stage is Stage.FORWARD:
            assert recorded.updates_at(key) == key.batch
    assert not recorded.broken(schedule)


@by_form
def test_the_two_edges_that_replace_the_fresh_read(shape):
    k, schedule = shape.staleness, built(shape)
    ends = {edge.ends[:1] + edge.ends[2:4] for edge in schedule.edges if edge.required}
    rows, update = Stage.EMB_EXCHANGE, Stage.UPDATE
    assert {(update, -k - 1, rows), (rows, k, update)} <= ends
    assert (update, -1, rows) not in ends and (update, -1, Stage.FORWARD) in ends
    assert not reach(schedule, 12).comes_before(Key(update, 3), Key(rows, 3 + k, 0))


@by_form
def test_each_of_the_two_is_missed(shape):
    """One edge taken away leaves five results in six executions (required_edges.md); the validator says so."""
    schedule = built(shape).required_only()
    rows, update = Stage.EMB_EXCHANGE, Stage.UPDATE
    collectives = [edge for edge in schedule.edges if edge.reason.startswith("one order of collectives")]
    for source, target in ((update, rows), (rows, update)):
        some = [edge for edge in schedule.edges if (edge.source, edge.target) == (source, target)]
        assert some
        with pytest.raises(InvalidSchedule) as refused:  # the order of collectives may imply the second
            validate(schedule.without(*some, *collectives), shape.accesses)
        assert any(f"missing: {source}(" in each and f"→ {target}(" in each for each in refused.value.problems)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 10**6), st.integers(0, 9), st.integers(1, 9))
@example(FORMS[3], 3, 6, 1)
def test_every_order_of_the_required_edges(shape, seed, batches, window):
    """The example forgot, when nothing but a late batch was waiting, what earlier ones were still to ask for."""
    schedule, recorded = built(shape).required_only(), Recorded(batches)
    assert carry_out(schedule, Shuffled(seed, window), recorded) == list(range(batches))
    assert not recorded.broken(schedule)


@by_form
def test_a_drain_ends_with_later_batches_that_never_come(shape):
    for executor in (Inline(), Lanes(), Shuffled(3)):
        recorded = Recorded(100)
        progress = Progress(built(shape), executor)
        numbers = [progress.advance(recorded) for _ in range(3)]
        progress.stop_loading()
        while (number := progress.advance(recorded)) is not None:
            numbers.append(number)
        loads = len(recorded.of(Stage.LOAD))
        assert numbers == list(range(loads)) and len(recorded.of(Stage.UPDATE)) == loads
        assert [progress.advance(recorded) for _ in range(2)] == [loads, loads + 1]  # and on it goes
        progress.close()


def test_what_is_refused():
    with pytest.raises(UserError, match="staleness=1 needs pipeline_depth of at least 2, and it is 1"):
        Shape(staleness=1)
    with pytest.raises(UserError, match="device_tier=slot_cache"):
        Shape("slot_cache", 2, staleness=1)
    with pytest.raises(UserError, match="replicas are averaged with none"):
        Shape(depth=2, staleness=1, sync_every=2)
    assert build(Shape(depth=2, staleness=1)).name == "stale(1)·prefetched(2)"
