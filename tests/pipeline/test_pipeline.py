"""The pipeline against an independent loop in plain torch, and its behaviour at edges: ends, errors, evaluation."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import FEATURES, make_batches, make_model, make_pipeline, train, weights_of

from nestlab.batch import Batch
from nestlab.pipeline import Shuffled, build
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder

pytestmark = pytest.mark.core


ROW_OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}


class PlainLoop:
    """The same model as torch users write it: EmbeddingBags, dense optimizers, one step after another."""

    def __init__(self, optimizer_name: str, batches: list[Batch]) -> None:
        model = make_model(optimizer_name, torch.float64)
        self.dense = copy.deepcopy(model.dense)
        self.ids = torch.unique(torch.cat([batch.ids for batch in batches]))
        weights = {name: model.embedding.full_weight(name, self.ids) for name in ("people", "things")}
        self.bags = {
            name: torch.nn.EmbeddingBag.from_pretrained(torch.as_tensor(w).clone(), freeze=False, mode=mode)
            for (name, w), mode in zip(weights.items(), ("sum", "mean"), strict=True)
        }
        table_weights = [bag.weight for bag in self.bags.values()]
        self.row_optimizer = ROW_OPTIMIZERS[optimizer_name](table_weights, lr=0.1)
        self.optimizer = torch.optim.Adam(self.dense.parameters(), lr=0.01)

    def stack(self, features) -> torch.Tensor:
        return torch.stack([self.pooled[name] for name in features], dim=1)

    def step(self, batch: Batch) -> float:
        table_of = {"user": "people", "item": "things", "tag": "things"}
        runs = dict(zip(FEATURES, batch.feature_lengths(), strict=True))
        starts = dict(zip(FEATURES, np.cumsum([0] + [int(n.sum()) for n in runs.values()]), strict=False))
        self.pooled = {}
        for name, lengths in runs.items():
            ids = batch.ids[starts[name] : starts[name] + int(lengths.sum())]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
            self.pooled[name] = self.bags[table_of[name]](torch.searchsorted(self.ids, ids), offsets)
        losses = self.dense(batch, self).losses
        loss = (losses * batch.weights).sum() / batch.weights.double().sum()
        loss.backward()
        for each in (self.row_optimizer, self.optimizer):
            each.step()
            each.zero_grad()
        return loss.item()


@pytest.mark.parametrize("optimizer_name", ["sgd", "adagrad"])
def test_equals_a_plain_torch_loop(optimizer_name):
    """float64, 30 steps: losses and final tables agree to 1e-12 (the order of sums differs)."""
    batches = make_batches(30)
    reference = PlainLoop(optimizer_name, batches)
    model = make_model(optimizer_name, torch.float64)
    losses = [float(output.loss) for output in make_pipeline(model).run(batches)]
    np.testing.assert_allclose(losses, [reference.step(batch) for batch in batches], rtol=0, atol=1e-12)
    for name, bag in reference.bags.items():
        ours = torch.as_tensor(model.embedding.full_weight(name, reference.ids))
        torch.testing.assert_close(ours, bag.weight.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("relaxed", [False, True], ids=["plain", "required edges only"])
def test_shuffled_is_bit_equal_to_inline(seed, relaxed):
    schedule = build(Techniques())
    schedule = schedule.required_only() if relaxed else schedule
    expected, losses = train(make_batches(12))
    model, shuffled_losses = train(make_batches(12), schedule=schedule, executor=Shuffled(seed))
    assert shuffled_losses == losses
    assert weights_of(model) == weights_of(expected)


class Counted:
    """An iterator that knows how often it was asked."""

    def __init__(self, batches):
        self.batches, self.drawn = iter(batches), 0

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self.batches)
        self.drawn += 1
        return batch


def test_two_epochs_draw_every_batch_once():
    pipeline = make_pipeline()
    for _ in range(2):
        source = Counted(make_batches(5))
        assert len([pipeline.progress(source) for _ in range(5)]) == 5
        with pytest.raises(StopIteration):
            pipeline.progress(source)
        assert source.drawn == 5


def test_a_look_ahead_draws_every_batch_once_and_hands_out_every_output():
    schedule = build(Techniques()).required_only()
    pipeline = make_pipeline(schedule=schedule, executor=Shuffled(1))
    source = Counted(make_batches(7))
    numbers = [output.batch for output in pipeline.run(source)]
    assert numbers == list(range(7)) and source.drawn == 7
    assert [output.batch for output in pipeline.run(make_batches(3))] == [7, 8, 9]


def test_drain_trains_what_is_in_flight():
    schedule = build(Techniques()).required_only()
    pipeline = make_pipeline(schedule=schedule, executor=Shuffled(2))
    source = Counted(make_batches(10))
    done = [pipeline.progress(source).batch] + [output.batch for output in pipeline.drain()]
    assert done == list(range(source.drawn)) and 1 < source.drawn < 10
    pipeline.evaluate(make_batches(1))  # nothing is in flight any more


def test_empty_loader():
    assert list(make_pipeline().run([])) == []


def test_empty_batch_and_one_sample():
    """A batch without samples changes nothing but the optimizers' clocks; one sample trains."""
    empty, single = make_batches(1)[0].slice(0, 0), make_batches(1, size=1)[0]
    model = make_model()
    before = {n: v.clone() for n, v in model.dense.state_dict().items()}
    pipeline = make_pipeline(model)
    assert float(pipeline.progress(iter([empty])).loss) == 0.0
    assert all(torch.equal(before[n], v) for n, v in model.dense.state_dict().items())
    assert float(pipeline.progress(iter([single])).loss) > 0.0


def test_weight_zero_is_as_if_absent():
    """A sample of weight 0 moves no weight: the rest trains as it does without it."""
    batch = make_batches(1, size=6)[0]
    weights = batch.weights.clone()
    weights[5] = 0.0
    with_it, without_it = make_model(dtype=torch.float64), make_model(dtype=torch.float64)
    list(make_pipeline(with_it).run([replace(batch, weights=weights)]))
    list(make_pipeline(without_it).run([batch.slice(0, 5)]))
    for name, value in with_it.dense.state_dict().items():
        torch.testing.assert_close(value, without_it.dense.state_dict()[name], rtol=0, atol=1e-12)


def test_evaluation_in_the_middle_changes_nothing():
    batches, others = make_batches(8), make_batches(4, seed=9, distinct=40)  # ids that training never saw
    undisturbed, _ = train(batches)
    model = make_model()
    pipeline = make_pipeline(model)
    for batch in batches:
        pipeline.progress(iter([batch]))
        labels, predictions = pipeline.evaluate(others)
        assert labels.shape == predictions.shape == (24,)
    assert weights_of(model) == weights_of(undisturbed)


def test_evaluate_refuses_batches_in_flight():
    schedule = build(Techniques()).required_only()
    pipeline = make_pipeline(schedule=schedule, executor=Shuffled(2))
    pipeline.progress(iter(make_batches(10)))
    with pytest.raises(RuntimeError, match="drain"):
        pipeline.evaluate(make_batches(1))


def test_an_error_names_stage_and_batch_and_stops_the_pipeline():
    def broken():
        yield from make_batches(2)
        raise OSError("the disk went away")

    pipeline = make_pipeline()
    with pytest.raises(OSError, match="disk") as raised:
        list(pipeline.run(broken()))
    assert "LOAD(2)" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"LOAD\(2\): OSError"):
        pipeline.progress(iter(make_batches(1)))


def test_every_action_leaves_an_event():
    recorder = Recorder(first_batch=2, batches=3)
    pipeline = make_pipeline(recorder=recorder)
    list(pipeline.run(make_batches(9)))
    trace = pipeline.trace({"dataset": "made rows"})
    assert sorted({event.batch for event in trace.events}) == [2, 3, 4]
    assert len(trace.events) == 3 * len(pipeline.schedule.entries)
    assert trace.edges


def test_state_does_not_grow_with_the_number_of_steps():
    pipeline = make_pipeline()
    for batch in make_batches(60, size=2):
        pipeline.progress(iter([batch]))
    assert not pipeline._step.flight and not pipeline._step.outputs
    assert len(pipeline._progress._ledger.done) <= 3 * len(pipeline.schedule.entries)
