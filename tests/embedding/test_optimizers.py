"""Row optimizers against torch's own, on random touched rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nestlab.embedding import OPTIMIZERS, SGD, Adagrad, LazyAdam, RowWiseAdagrad, StepInfo, optimizer
from nestlab.errors import UserError

pytestmark = pytest.mark.core

ROWS, STEPS = 30, 25
TOLERANCE = {torch.float64: (1e-14, 1e-15), torch.float32: (3e-6, 1e-7)}  # relative, absolute; see design.md 2


def rowwise_adagrad_reference(weight, state, grad, lr, eps, scale=1.0):
    """fbgemm's rule, written with torch's dense operations; the state counts 1/scale."""
    state += grad.double().square().mean(dim=1, keepdim=True).to(grad.dtype)
    weight -= lr / ((state / scale).sqrt() + eps) * grad


def reference(kind, weight: torch.Tensor):
    """An optimizer of torch's with the same settings, as a function of (rows, grads, lr)."""
    parameter = torch.nn.Parameter(weight)
    if kind.name == "rowwise_adagrad":
        state = torch.zeros(ROWS, 1, dtype=weight.dtype)

        def step(rows, grads, lr):
            dense = torch.zeros_like(weight).index_copy(0, rows, grads)
            with torch.no_grad():
                rowwise_adagrad_reference(parameter, state, dense, lr, kind.eps, kind.state_scale)

        return parameter, step
    if kind.name == "sgd":
        other = torch.optim.SGD([parameter], lr=kind.lr)
    elif kind.name == "adagrad":
        options = {"eps": kind.eps, "initial_accumulator_value": kind.initial_accumulator}
        other = torch.optim.Adagrad([parameter], lr=kind.lr, **options)
    else:
        other = torch.optim.SparseAdam([parameter], lr=kind.lr, betas=kind.betas, eps=kind.eps)

    def step(rows, grads, lr):
        other.param_groups[0]["lr"] = lr
        if kind.name == "lazy_adam":
            parameter.grad = torch.sparse_coo_tensor(rows[None], grads, weight.shape, check_invariants=True).coalesce()
        else:
            parameter.grad = torch.zeros_like(weight).index_copy(0, rows, grads)
        other.step()

    return parameter, step


KINDS = [
    SGD(lr=0.3),
    Adagrad(lr=0.3),
    Adagrad(lr=0.1, eps=1e-3, initial_accumulator=0.5),
    RowWiseAdagrad(lr=0.3),
    RowWiseAdagrad(lr=0.3, eps=1e-2, state_scale=3.0),
    LazyAdam(lr=0.02),
    LazyAdam(lr=0.02, betas=(0.5, 0.7), eps=1e-3),
]


@pytest.mark.parametrize("dim", [1, 6, 16])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_equal_torch(kind, dtype, dim):
    """Broken on purpose: without the write of Adagrad's state, or with Adam's β₁ decayed twice, this fails."""
    generator = torch.Generator().manual_seed(dim)
    records = torch.full((ROWS, dim + kind.state_width(dim)), kind.initial_state, dtype=dtype)
    records[:, :dim] = torch.randn(ROWS, dim, generator=generator, dtype=dtype)
    weight, step = reference(kind, records[:, :dim].clone())
    rtol, atol = TOLERANCE[dtype]
    for number in range(1, STEPS + 1):
        rows = torch.randperm(ROWS, generator=generator)[: number % ROWS]
        grads = torch.randn(rows.numel(), dim, generator=generator, dtype=dtype)
        lr = kind.lr / number
        kind.update(records.numpy(), rows.numpy(), grads.numpy(), StepInfo(number, lr))
        step(rows, grads, lr)
    torch.testing.assert_close(records[:, :dim], weight.data, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_touches_only_its_rows_and_all_of_the_state(kind):
    dim = 5
    records = np.full((8, dim + kind.state_width(dim)), 0.25)
    kind.update(records, np.array([6, 2]), np.ones((2, dim)), StepInfo(3))
    assert (records[[0, 1, 3, 4, 5, 7]] == 0.25).all()
    assert (records[[2, 6]] != 0.25).all()


def test_a_scaled_state_steps_as_a_smaller_one():
    """By hand in float64, and against √c times the step where ε is 0. Seen to fail with √v/c in place of √(v/c)."""
    grad, eps, scale = np.array([[0.3, -0.4]]), 1e-3, 4.0
    stepped = []
    for state_scale, epsilon in ((scale, eps), (1.0, 0.0), (scale, 0.0)):
        records = np.array([[1.0, 2.0, 0.5]])
        RowWiseAdagrad(0.1, epsilon, state_scale).update(records, np.array([0]), grad, StepInfo(1))
        assert records[0, 2] == pytest.approx(0.5 + (0.09 + 0.16) / 2, rel=1e-15)  # the state itself is not scaled
        stepped.append(records[0, :2] - [1.0, 2.0])
    expected = -0.1 * grad[0] / ((0.625 / scale) ** 0.5 + eps)
    np.testing.assert_allclose(stepped[0], expected, rtol=1e-14)
    np.testing.assert_allclose(stepped[2], 2.0 * stepped[1], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_scale_of_one_has_the_bits_of_no_scale(dtype):
    """The step of the kernel written in numpy, dtype by dtype, without the division."""
    rng = np.random.default_rng(1)
    records, grads = np.abs(rng.normal(size=(40, 9))).astype(dtype), rng.normal(size=(40, 8)).astype(dtype)
    expected = records.copy()
    wide = grads.astype(np.float64) ** 2
    strands = [wide[:, k] + wide[:, k + 4] for k in range(4)]
    expected[:, 8] += (((strands[0] + strands[1]) + (strands[2] + strands[3])) / 8).astype(dtype)
    expected[:, :8] -= (dtype(0.1) / (np.sqrt(expected[:, 8]) + dtype(1e-8)))[:, None] * grads
    RowWiseAdagrad(0.1).update(records, np.arange(40), grads, StepInfo(1))
    np.testing.assert_array_equal(records, expected)


def test_optimizers_by_name():
    assert optimizer("adagrad", lr=0.5, eps=1e-4) == Adagrad(lr=0.5, eps=1e-4)
    assert set(OPTIMIZERS) == {"sgd", "adagrad", "rowwise_adagrad", "lazy_adam"}
    with pytest.raises(UserError, match="unknown optimizer 'adam'; use one of sgd, adagrad"):
        optimizer("adam", lr=0.1)
    with pytest.raises(UserError, match="momentum"):
        optimizer("sgd", lr=0.1, momentum=0.9)
    with pytest.raises(UserError, match="lr is -1"):
        SGD(lr=-1)
    with pytest.raises(UserError, match=r"state_scale is 0\.0; give a number above 0"):
        RowWiseAdagrad(lr=0.1, state_scale=0.0)
    with pytest.raises(UserError, match="betas"):
        LazyAdam(lr=0.1, betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="start at 1"):
        StepInfo(0)
