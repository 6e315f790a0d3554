"""The memory account: bytes by kind while a pipeline trains, against sums made here, and nothing that grows."""

from __future__ import annotations

import gc

import pytest
import torch
from tiny import DIM, make_batches, make_model, make_pipeline, weights_of

from nestlab.tracing import Recorder
from nestlab.tracing.activations import SavedBytes
from nestlab.tracing.memory import DENSE, DEVICE, HOST, KINDS, totals


def recorded(data, **window):
    pipeline = make_pipeline(recorder=Recorder(**window))
    list(pipeline.run(data))
    return pipeline, pipeline.trace()


def test_kinds_follow_the_life_of_a_batch():
    batches = make_batches(3)
    _, trace = recorded(batches)
    ends = {event.end_ns: (event.stage, event.batch) for event in trace.events}
    after = {ends[sample.time_ns]: dict(sample.values) for sample in trace.counters}
    assert after["LOAD", 1]["batches in flight"] == batches[1].nbytes
    assert after["LOAD", 1]["exchange"] == after["LOAD", 1]["activations"] == 0
    unique = sum(
        len(torch.unique(part))
        for part in (
            batches[1].ids[: batches[1].feature_lengths()[0].sum()],
            batches[1].ids[batches[1].feature_lengths()[0].sum() :],
        )
    )
    assert after["EMB_EXCHANGE", 1]["exchange"] == unique * DIM * 4
    assert after["FORWARD", 1]["activations"] > 0
    assert after["BACKWARD", 1]["activations"] == 0
    assert after["BACKWARD", 1]["exchange"] == 2 * unique * DIM * 4  # rows and their gradients
    assert after["RELEASE", 1]["batches in flight"] == after["RELEASE", 1]["exchange"] == 0
    tables = [dict(sample.values)["tables"] for sample in trace.counters]
    assert tables == sorted(tables) and tables[-1] > tables[0]


def test_readings_stay_in_the_window():
    _, trace = recorded(make_batches(30), first_batch=4, batches=3)
    begin, end = trace.span(0)
    assert trace.counters and all(begin <= sample.time_ns <= end for sample in trace.counters)


def test_the_account_names_every_kind_and_both_totals():
    pipeline, trace = recorded(make_batches(6))
    memory = pipeline.memory(trace)
    by_kind = memory.set_index("kind")["peak_bytes"]
    assert list(by_kind.index) == [*KINDS, DENSE, DEVICE, HOST]
    assert by_kind["buffers"] == 0 and all(by_kind[kind] > 0 for kind in by_kind.index if kind != "buffers")
    weights = sum(p.nbytes for p in pipeline.model.dense.parameters())
    assert 4 * weights <= by_kind[DENSE] < 4 * weights + 1000  # weight, gradient, Adam's two moments, step counts
    on_device = [kind for kind in KINDS if kind != "tables"]
    assert by_kind[DENSE] < by_kind[DEVICE] <= by_kind[DENSE] + sum(by_kind[kind] for kind in on_device)
    assert totals(memory) == {"peak_host_bytes": by_kind[HOST], "peak_device_bytes": by_kind[DEVICE]}
    assert memory["how_obtained"].str.match("accounted|estimated|measured").all()


def test_recording_changes_no_number():
    plain, traced = make_model(), make_model()
    losses = [float(o.loss) for o in make_pipeline(plain).run(make_batches(20))]
    assert [float(o.loss) for o in make_pipeline(traced, recorder=Recorder()).run(make_batches(20))] == losses
    assert weights_of(plain) == weights_of(traced)


def test_saved_bytes_counts_each_storage_once_and_nothing_that_is_known():
    weight, x = torch.ones(8, 4, requires_grad=True), torch.ones(5, 4)
    with SavedBytes([weight, x]) as saved:
        hidden = (x @ weight.T).sigmoid()  # sigmoid saves its output, [5, 8]
        loss = (hidden * hidden).sum()  # the same storage again
    assert saved.nbytes == 5 * 8 * 4
    loss.backward()
    expected = torch.ones(8, 4, requires_grad=True)
    (x @ expected.T).sigmoid().square().sum().backward()
    assert torch.equal(weight.grad, expected.grad)


def test_saved_bytes_leaves_second_derivatives_as_they_are():
    x = torch.tensor([0.3, -2.0], requires_grad=True)
    with SavedBytes():
        (gradient,) = torch.autograd.grad((x.sigmoid() ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    y = x.detach().double().requires_grad_()
    s = torch.sigmoid(y)
    first = 3 * s**3 * (1 - s)
    (expected,) = torch.autograd.grad(first.sum(), y)
    torch.testing.assert_close(second, expected.float())


def test_saved_bytes_holds_no_graph_alive():
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(1000, requires_grad=True)
        with SavedBytes():
            y = x.sigmoid()
        alive = y.untyped_storage().data_ptr()
        del y
        assert not any(
            isinstance(o, torch.Tensor) and o.untyped_storage().data_ptr() == alive
            for o in gc.get_objects()
            if type(o) is torch.Tensor
        )
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [1_600, pytest.param(4_000, marks=pytest.mark.slow)])
def test_a_traced_run_of_any_length_keeps_as_many_objects(steps):
    """Ids repeat, so the tables stop growing; what is left to grow would be the recorder's or the pipeline's.

    Objects are counted: tracemalloc makes the steps twice as long. Its turn is in tests/tracing.
    """
    pipeline = make_pipeline(recorder=Recorder(first_batch=4, batches=32))
    batches = make_batches(8, size=1)
    for _ in range(20):
        list(pipeline.run(batches))
    events = len(pipeline.recorder)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(steps // len(batches)):
        list(pipeline.run(batches))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert len(pipeline.recorder) == events == 32 * len(pipeline.schedule.entries)
    assert len(pipeline.trace().counters) <= events
