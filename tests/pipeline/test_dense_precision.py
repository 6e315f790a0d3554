"""The dense part in bf16 and compiled: the plain loop's bits in the same arithmetic, and nothing left behind.

Broken on purpose, each seen to fail here: no autocast around the forward pass; losses summed in bf16; evaluation in
another arithmetic than training; tf32 left on; a compiled part that goes on uncompiled after too many graphs.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from rank_cases import Case, alone, learn, merged, same_bits
from tiny import DIM, FEATURES, make_batches, make_model, make_pipeline, train
from torch import nn
from torch.nn import functional as F

from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
from nestlab.errors import UserError
from nestlab.models import DenseOutput, RecModel
from nestlab.pipeline import Pipeline, arithmetic
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder

BF16 = "dense_precision=bf16"
DBP = "device_tier=dual_buffer,pipeline_depth=3"


def test_double_buffers_have_the_plain_loop_s_bits_in_bf16():
    plain = alone(Case(BF16, steps=12))
    assert same_bits(alone(Case(f"{BF16},{DBP}", executor="lanes", steps=12)), plain)
    full = alone(Case(steps=12))
    assert not same_bits(full, plain)
    torch.testing.assert_close(plain["losses"], full["losses"], rtol=0.05, atol=0.05)  # bf16 has 8 bits
    assert all(value.dtype != torch.bfloat16 for value in plain.values())


def test_a_frozen_window_in_bf16_has_the_bits_of_its_micro_batches_one_after_another():
    parts = f"{BF16},micro_batches=3,clustering=greedy"
    assert same_bits(alone(Case(f"{parts},{DBP}", executor="lanes", steps=12)), alone(Case(parts, steps=12)))


def test_a_frozen_window_in_bf16_is_the_plain_loop_up_to_the_rounding_of_its_gradients():
    """One step of SGD with rate 1: steps are gradients. Tolerance: 2⁻⁶ of the largest gradient of a tensor, since the
    gradient of each of four micro-batches is rounded to 8 bits (2⁻⁸) and their sizes add up to a few times the sum.
    """
    batch = make_batches(1, 64)
    found = []
    for text in (BF16, f"{BF16},micro_batches=4"):
        model = make_model("sgd")
        before = {name: value.detach().clone() for name, value in model.dense.named_parameters()}
        sgd = torch.optim.SGD(model.dense.parameters(), lr=1.0)
        list(Pipeline(model, sgd, Techniques.parse(text)).run(batch))
        found.append({name: before[name] - value.detach() for name, value in model.dense.named_parameters()})
    plain, parts = found
    assert any(not torch.equal(parts[name], step) for name, step in plain.items())
    for name, step in plain.items():
        torch.testing.assert_close(parts[name], step, rtol=0, atol=2**-6 * float(step.abs().max()))


class Linear(nn.Module):
    """A layer, and logits straight into a loss by hand, which autocast knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 1)
        nn.init.constant_(self.layer.weight, 0.3)

    def forward(self, batch, embedded) -> DenseOutput:
        logits = self.layer(embedded.pooled("item")).squeeze(1)
        return DenseOutput(logits * (1 - 2 * batch.labels.to(logits.dtype)), logits)


def test_one_step_in_bf16_is_what_casts_by_hand_give():
    """The reference casts rows and weights itself, and sums losses in float32."""
    batch = make_batches(1, 300)[0]
    store = EmbeddingStore([TableConfig("things", DIM, FEATURES)], optimizer("sgd", lr=0.1), seed=3)
    model = RecModel(store, Linear())
    bag = _pooled(batch, store)
    weight = model.dense.layer.weight.detach().clone().requires_grad_()
    bias = model.dense.layer.bias.detach().clone().requires_grad_()
    logits = F.linear(bag.bfloat16(), weight.bfloat16(), bias.bfloat16()).squeeze(1)
    losses = (logits * (1 - 2 * batch.labels.bfloat16())).float()
    loss = (losses * batch.weights).sum() / batch.weights.sum()
    loss.backward()
    pipeline = Pipeline(model, torch.optim.SGD(model.dense.parameters(), lr=1.0), Techniques.parse(BF16))
    (output,) = pipeline.run([batch])
    torch.testing.assert_close(output.loss, loss.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(output.predictions, logits.detach().float()) and output.predictions.dtype == torch.float32
    torch.testing.assert_close(model.dense.layer.weight, weight - weight.grad, rtol=0, atol=2**-8 * weight.grad.max())


class Twice(nn.Module):
    """One weight [1, 1] that two look-ups meet: its gradient is the sum of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> DenseOutput:
        losses = F.linear(first, self.weight).float() + F.linear(second, self.weight).float()
        return DenseOutput(losses, losses)


def test_the_gradients_of_a_weight_that_is_used_twice_are_added_up_in_float32():
    """256 + 1 is no bf16 number. Broken on purpose: autocast with its cache, which gives 256."""
    dense = Twice()
    called = arithmetic.DenseArithmetic(dense, Techniques.parse(BF16), torch.device("cpu"), torch.float32)
    called.backward(called(torch.tensor([[256.0]]), torch.tensor([[1.0]])).losses.sum())
    assert dense.weight.grad.item() == 257.0


def _pooled(batch, store) -> torch.Tensor:
    lengths = batch.feature_lengths()[1].tolist()
    first = int(batch.feature_lengths()[0].sum())
    ids = batch.ids[first : first + sum(lengths)]
    rows = store.full_weight("things", ids)
    return torch.stack([piece.sum(dim=0) for piece in rows.split(lengths)])


def test_evaluation_computes_as_training_does():
    batch, model = make_batches(1, 50)[0], make_model()
    _, full = make_pipeline(model).evaluate([batch])
    pipeline = make_pipeline(model, techniques=Techniques.parse(BF16))
    _, seen = pipeline.evaluate([batch])
    (output,) = pipeline.run([batch])
    assert (seen == output.predictions.numpy()).all() and (seen != full).any()


@pytest.mark.dist
def test_two_ranks_in_bf16_are_equal_to_the_plain_loop_on_two_ranks(ranks):
    plain = merged(ranks.run(learn, Case(BF16, steps=5)))
    assert same_bits(merged(ranks.run(learn, Case(f"{BF16},{DBP}", executor="lanes", steps=5))), plain)


def test_nothing_is_left_behind_on_module_or_process(eager):
    model = make_model()
    before = {key: id(value) for key, value in vars(model.dense).items()}
    train(make_batches(3), model, techniques=Techniques.parse(f"{BF16},compile_dense=on"))
    assert {key: id(value) for key, value in vars(model.dense).items()} == before
    assert "forward" not in vars(model.dense) and not torch.is_autocast_enabled("cpu")
    assert {p.dtype for p in model.dense.parameters()} == {torch.float32}


@pytest.mark.parametrize("before", ["highest", "high"])
def test_the_switch_to_tf32_is_put_back_whatever_happens(before):
    switch, was = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        state = switch.fp32_precision
        with pytest.raises(ZeroDivisionError), arithmetic._tf32():
            assert switch.fp32_precision == "tf32"
            raise ZeroDivisionError
        assert (switch.fp32_precision, torch.get_float32_matmul_precision()) == (state, before)
    finally:
        torch.set_float32_matmul_precision(was)


def test_what_a_machine_or_a_model_does_not_have_is_refused_in_one_line(monkeypatch):
    refused = [
        ("dense_precision=tf32", {}, "only CUDA devices have it, and this is cpu; use fp32, or bf16"),
        (BF16, {"model": make_model(dtype=torch.float64)}, "are float64, which has no such arithmetic"),
    ]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    refused.append(("compile_dense=on", {}, r"there is no C\+\+ compiler here \(g\+\+, clang\+\+\); install one"))
    for text, options, says in refused:
        with pytest.raises(UserError, match=says) as raised:
            make_pipeline(techniques=Techniques.parse(text), **options)
        assert "\n" not in str(raised.value)


@pytest.fixture
def eager(monkeypatch):
    """torch.compile without its slow half: graphs are taken, checked and run as they are."""
    monkeypatch.setattr(arithmetic, "BACKEND", "eager")


def test_a_compiled_part_has_the_plain_loop_s_bits(eager):
    """Graphs run by themselves compute what the module does: here even the uncompiled bits."""
    assert same_bits(alone(Case(f"compile_dense=on,{DBP}", executor="lanes", steps=8)), alone(Case(steps=8)))
    batches = [*make_batches(3), *make_batches(2, 9, seed=1), *make_batches(1, 1, seed=2)]
    pipelines = [
        make_pipeline(techniques=flags, recorder=Recorder()) for flags in (Techniques(compile_dense=True), None)
    ]
    for pipeline in pipelines:
        list(pipeline.run(batches))
    (one, *_), (other, *_) = [
        (pipeline.evaluate(batches)[1], pipeline.memory(pipeline.trace())) for pipeline in pipelines
    ]
    assert (one == other).all()


class Particular(Linear):
    """Each call depends on another value: a graph a call."""

    def __init__(self) -> None:
        super().__init__()
        self.word = ""

    def forward(self, batch, embedded) -> DenseOutput:
        self.word += "x"
        return super().forward(batch, embedded)


def test_too_many_graphs_are_an_error_and_never_a_silent_change(eager, monkeypatch):
    monkeypatch.setattr(arithmetic, "GRAPHS", 2)
    store = EmbeddingStore([TableConfig("things", DIM, FEATURES)], optimizer("sgd", lr=0.1), seed=3)
    model = RecModel(store, Particular())
    pipeline = make_pipeline(model, techniques=Techniques.parse("compile_dense=on"))
    with pytest.raises(UserError, match="needs more than 2 graphs, one for each new size or value"):
        list(pipeline.run(make_batches(6)))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="this machine has no C++ compiler")
def test_inductor_is_exact_beside_its_own_plain_loop():
    flags = f"compile_dense=on,{BF16}"
    plain = alone(Case(flags, steps=4))
    assert same_bits(alone(Case(f"{flags},{DBP}", executor="lanes", steps=4)), plain)
    torch.testing.assert_close(plain["losses"], alone(Case(steps=4))["losses"], rtol=0.05, atol=0.05)
