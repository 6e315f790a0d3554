"""A thread a lane: the same bits as in one thread, overlap where the edges leave it, errors, and no thread left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import make_batches, make_model, make_pipeline, train, weights_of

from nestlab.exchange import LocalTransport
from nestlab.pipeline import Edge, Inline, Lane, Lanes, Schedule, Shape, Stage, build
from nestlab.pipeline.schedule import Entry
from nestlab.tracing import Recorder

DEEP = Shape(depth=5)


def lane_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nestlab ")]


def wait_for_no_thread(seconds: float = 10.0) -> None:
    """Threads of a pipeline that was dropped end after the action they are in."""
    until = time.monotonic() + seconds
    while lane_threads() and time.monotonic() < until:
        time.sleep(0.005)
    assert not lane_threads()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if lane_threads():
        gc.collect()
    wait_for_no_thread()


def slowly(batches, seconds: float = 0.0, at: int | None = None, event: threading.Event | None = None):
    """The batches; before number `at` it waits for `event`."""
    for number, batch in enumerate(batches):
        if number == at:
            event.wait(20)
        time.sleep(seconds)
        yield batch


@pytest.mark.parametrize("depth", [1, 2, 5, 6])
@pytest.mark.parametrize("split", [False, True])
def test_bit_equal_to_inline(depth, split):
    expected, losses = train(make_batches(30))
    model, found = train(make_batches(30), schedule=build(Shape(depth=depth, split=split)), executor=Lanes())
    assert found == losses
    assert weights_of(model) == weights_of(expected)


def test_required_edges_alone_are_enough():
    """No back-pressure: lanes run as far ahead as a step lets them.

    Broken on purpose: a lane that does not ask whether its next action is ready stops at a missing input.
    """
    expected, _ = train(make_batches(30))
    schedule = build(DEEP).required_only()
    model, _ = train(make_batches(30), schedule=schedule, executor=Lanes())
    assert weights_of(model) == weights_of(expected)


def test_two_lanes_work_at_once():
    """LOAD of a later batch and the computation of this one meet at a barrier, which one thread alone never passes.

    Broken on purpose: with `Inline` in place of `Lanes` the barrier times out.
    """
    meeting = threading.Barrier(2, timeout=20)

    class Meets(LocalTransport):
        def all_reduce(self, channel, flat):
            meeting.wait()
            return flat

    def source():
        for number, batch in enumerate(make_batches(12)):
            if number >= 4:  # the first four fill the pipeline
                meeting.wait()
            yield batch
        for _ in range(4):
            meeting.wait()

    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes(), transport=Meets())
    assert len(list(pipeline.run(source()))) == 12


def test_a_computation_waits_until_it_is_asked_for():
    """Between two calls the caller may change what the next step reads: no FORWARD has begun by then.

    Broken on purpose: with two steps planned at a time the learning rates meet other batches.
    """
    rates = [0.1, 0.01, 0.3, 0.0, 0.2]
    learnt = []
    for executor in (Inline(), Lanes()):
        model = make_model()
        pipeline = make_pipeline(model, schedule=build(DEEP), executor=executor)
        source = iter(make_batches(len(rates)))
        for rate in rates:
            pipeline._step.optimizer.param_groups[0]["lr"] = rate
            pipeline.progress(source)
            if executor != Inline():
                time.sleep(0.02)  # what could run ahead has done so
        pipeline.drain()
        learnt.append(weights_of(model))
    assert learnt[0] == learnt[1]


def test_dropout_draws_the_same_numbers():
    class Noisy(torch.nn.Module):
        def __init__(self, dense):
            super().__init__()
            self.dense, self.dropout = dense, torch.nn.Dropout(0.3)

        def forward(self, batch, embedded):
            noisy = replace(batch, dense=self.dropout(batch.dense))
            return self.dense(noisy, embedded)

    learnt = []
    for executor in (Inline(), Lanes(), Lanes()):
        torch.manual_seed(7)
        model = make_model()
        model = replace(model, dense=Noisy(model.dense))
        list(make_pipeline(model, schedule=build(DEEP), executor=executor).run(make_batches(12)))
        learnt.append(weights_of(model))
    assert learnt[0] == learnt[1] == learnt[2]


def test_callers_grad_mode_is_not_the_lanes():
    """Broken on purpose: a step that leaves the mode as it is fails under `Inline`, and a lane has one of its own."""
    expected, _ = train(make_batches(6))
    for executor in (Inline(), Lanes()):
        with torch.no_grad():
            model, _ = train(make_batches(6), schedule=build(DEEP), executor=executor)
        assert weights_of(model) == weights_of(expected)


def test_epochs_drain_evaluation_and_new_loaders():
    """The same calls as in one thread give the same numbers and outputs; threads end with each pass.

    Broken on purpose: threads that are not joined; an end that is taken for that of the loader at hand.
    """
    learnt = []
    for executor in (Inline(), Lanes()):
        model = make_model()
        pipeline = make_pipeline(model, schedule=build(DEEP), executor=executor)
        numbers = [output.batch for output in pipeline.run(make_batches(7))]
        assert not lane_threads()
        source = iter(make_batches(9, seed=1))
        numbers += [pipeline.progress(source).batch for _ in range(3)]
        numbers += [output.batch for output in pipeline.drain()]
        assert not lane_threads()
        labels, _ = pipeline.evaluate(make_batches(2, seed=2))
        assert labels.shape == (12,)
        for seed in (3, 4):  # a loader that has one batch, as long as there are loaders
            numbers.append(pipeline.progress(iter(make_batches(1, seed=seed))).batch)
        numbers += [output.batch for output in pipeline.run(source)]
        numbers += [output.batch for output in pipeline.run(make_batches(3, seed=5))]
        assert numbers == list(range(len(numbers)))
        learnt.append((len(numbers), weights_of(model)))
    assert learnt[0] == learnt[1]
    assert learnt[0][0] == 7 + 9 + 2 + 3


def test_evaluation_is_refused_while_batches_are_in_flight():
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    pipeline.progress(iter(make_batches(10)))
    with pytest.raises(RuntimeError, match=r"in flight; call drain\(\) first"):
        pipeline.evaluate(make_batches(1))


def test_a_drain_waits_for_a_load_that_has_begun():
    """The batch that a lane is reading when the drain comes is trained, and the next one is not read.

    Broken on purpose: a drain that counts loads that have ended only loses that batch.
    """
    gate, drawn = threading.Event(), []

    def slow():
        for number, batch in enumerate(make_batches(8)):
            if number == 5:
                gate.wait(20)
            drawn.append(number)
            yield batch

    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    source = slow()
    numbers = [pipeline.progress(source).batch for _ in range(2)]  # the second returns while LOAD(5) waits
    assert 5 not in drawn
    threading.Timer(0.1, gate.set).start()
    numbers += [output.batch for output in pipeline.drain()]
    assert numbers == drawn == list(range(6))


def test_what_was_asked_of_a_loader_is_not_read_from_the_next():
    """LOAD(4) of the first step still waits in its lane when the caller comes with another loader.

    Broken on purpose: without `settle` batch 4 is the second loader's first.
    """
    gate = threading.Event()
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    one, two = make_batches(9), make_batches(9, seed=1)
    outputs = [pipeline.progress(slowly(one, at=3, event=gate))]
    threading.Timer(0.1, gate.set).start()
    outputs.append(pipeline.progress(iter(two)))
    outputs += pipeline.drain()
    assert [o.labels.tolist() for o in outputs] == [batch.labels.tolist() for batch in [*one[:5], two[0]]]


@pytest.mark.parametrize("stage", [Stage.LOAD, Stage.ROUTE, Stage.PREPARE, Stage.FORWARD, Stage.UPDATE, Stage.RELEASE])
def test_an_error_in_any_lane_names_stage_and_batch_and_stops_all(stage):
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    right = pipeline._step._do[stage]

    def wrong(t, *part):
        if t == 3:
            raise OSError("it went away")
        return right(t, *part)

    pipeline._step._do[stage] = wrong
    with pytest.raises(OSError, match="it went away") as raised:
        list(pipeline.run(make_batches(12)))
    assert f"in {stage}(3" in raised.value.__notes__[0]
    assert not lane_threads()
    with pytest.raises(RuntimeError, match=rf"{stage}\(3.*\): OSError"):
        pipeline.progress(iter(make_batches(1)))
    pipeline._step._do[stage] = right


def test_an_error_while_the_caller_is_away_comes_with_the_next_call():
    def broken():
        yield from make_batches(5)
        raise OSError("the disk went away")

    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    source = broken()
    pipeline.progress(source)
    with pytest.raises(OSError, match="disk") as raised:
        for _ in range(4):
            time.sleep(0.02)
            pipeline.progress(source)
    assert "LOAD(5)" in raised.value.__notes__[0]


def test_an_interrupt_of_the_caller_ends_the_threads():
    """Ctrl-C while the caller waits for a batch: the action that has begun is waited for, nothing else is begun."""
    gate = threading.Event()
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    source = slowly(make_batches(9), at=0, event=gate)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(0.3, gate.set).start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.progress(source)
    assert gate.is_set() and not lane_threads()
    assert len(pipeline._step.flight) == 1  # batch 0 was read; no other was
    with pytest.raises(RuntimeError, match="stopped at an error"):
        pipeline.progress(source)


def test_a_pipeline_that_is_dropped_leaves_no_thread():
    """In the middle of a pass, idle or with a load under way.

    Broken on purpose: threads that keep what they last called keep the pipeline, and with it themselves.
    """
    for wait in (False, True):
        gate = threading.Event()
        pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
        passing = pipeline.run(slowly(make_batches(20), at=6, event=gate))
        next(passing), next(passing)
        if wait:
            gate.set()
        assert lane_threads()
        del passing, pipeline
        gate.set()
        gc.collect()
        wait_for_no_thread()


def test_a_lane_waits_asleep():
    """Waiting for a loader costs no processor time: neither the lanes' nor the caller's."""
    gate = threading.Event()
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    source = slowly(make_batches(6), at=5, event=gate)
    pipeline.progress(source)
    threading.Timer(0.5, gate.set).start()
    before = time.process_time()
    pipeline.progress(source)
    pipeline._progress.settle()
    assert time.process_time() - before < 0.4
    pipeline.drain()


def test_a_lane_that_waits_for_ever_is_an_error():
    """Two lanes, each with the other's source behind its own target: list order that no validator has seen."""
    entries = (Entry(Stage.ROUTE, Lane.ROUTE), Entry(Stage.LOAD, Lane.LOAD))
    edges = (Edge(Stage.LOAD, Stage.ROUTE, +1), Edge(Stage.ROUTE, Stage.LOAD, 0))
    pipeline = make_pipeline(schedule=Schedule("knot", entries, edges), executor=Lanes())
    with pytest.raises(RuntimeError, match=r"'knot' cannot go on: ROUTE\(0\)@route waits for ever"):
        pipeline.progress(iter(make_batches(3)))


def test_every_action_leaves_an_event_and_edges_hold_in_time():
    schedule = build(DEEP)
    pipeline = make_pipeline(schedule=schedule, executor=Lanes(), recorder=Recorder())
    list(pipeline.run(make_batches(20)))
    trace = pipeline.trace()
    assert len(trace.events) == 20 * len(schedule.entries)
    assert trace.lanes == tuple(lane.value for lane in schedule.lanes)
    events = {event.key: event for event in trace.events}
    assert trace.edges and all(events[a].end_ns <= events[b].start_ns for a, b in trace.edges)
    assert pipeline.memory(trace).set_index("kind")["peak_bytes"]["batches in flight"] > 0


def test_state_does_not_grow():
    pipeline = make_pipeline(schedule=build(DEEP), executor=Lanes())
    source = iter(make_batches(60, size=2))
    for _ in range(55):
        pipeline.progress(source)
    assert len(pipeline._progress._ledger.done) <= 12 * len(pipeline.schedule.entries)
    pipeline.drain()
    assert not pipeline._step.flight and not pipeline._step.outputs


@pytest.mark.parametrize("repeat", range(3))
def test_many_short_passes(repeat):
    """Starts and ends, where a race would show: 60 passes of 0 to 3 batches."""
    model, expected = make_model(), make_model()
    pipeline, reference = make_pipeline(model, schedule=build(DEEP), executor=Lanes()), make_pipeline(expected)
    for number in range(60):
        batches = make_batches(number % 4, size=2, seed=number + repeat)
        assert [o.batch for o in pipeline.run(batches)] == [o.batch for o in reference.run(batches)]
    assert weights_of(model) == weights_of(expected)


LEAVES = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from tiny import make_batches, make_pipeline
from nestlab.pipeline import Lanes, Shape, build

def source():
    yield from make_batches(6)
    threading.Event().wait()

pipeline = make_pipeline(schedule=build(Shape(depth=5)), executor=Lanes())
outputs = pipeline.run(source())
print([next(outputs).batch for _ in range(3)])
"""


def test_a_process_ends_with_a_pass_under_way():
    """A script that stops in the middle, while a loader waits for what never comes, ends by itself and in order."""
    command = [sys.executable, "-c", LEAVES, str(Path(__file__).parent)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "[0, 1, 2]", "")
