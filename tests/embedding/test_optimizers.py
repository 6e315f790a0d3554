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


def rowwise_adagrad_reference(weight, state, grad, lr, eps):
    """fbgemm's rule, written with torch's dense operations."""
    state += grad.double().square().mean(dim=1, keepdim=True).to(grad.dtype)
    weight -= lr / (state.sqrt() + eps) * grad


def reference(kind, weight: torch.Tensor):
    """An optimizer of torch's with the same settings, as a function of (rows, grads, lr)."""
    parameter = torch.nn.Parameter(weight)
    if kind.name == "rowwise_adagrad":
        state = torch.zeros(ROWS, 1, dtype=weight.dtype)

        def step(rows, grads, lr):
            dense = torch.zeros_like(weight).index_copy(0, rows, grads)
            with torch.no_grad():
                rowwise_adagrad_reference(parameter, state, dense, lr, kind.eps)

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


def test_optimizers_by_name():
    assert optimizer("adagrad", lr=0.5, eps=1e-4) == Adagrad(lr=0.5, eps=1e-4)
    assert set(OPTIMIZERS) == {"sgd", "adagrad", "rowwise_adagrad", "lazy_adam"}
    with pytest.raises(UserError, match="unknown optimizer 'adam'; use one of sgd, adagrad"):
        optimizer("adam", lr=0.1)
    with pytest.raises(UserError, match="momentum"):
        optimizer("sgd", lr=0.1, momentum=0.9)
    with pytest.raises(UserError, match="lr is -1"):
        SGD(lr=-1)
    with pytest.raises(UserError, match="betas"):
        LazyAdam(lr=0.1, betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="start at 1"):
        StepInfo(0)
