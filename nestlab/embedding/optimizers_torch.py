"""The row optimizers in torch operations, for records that lie on an accelerator.

The same operations in the same order as `record_kernels`: SGD has the same bits. The others agree to the last bits:
torch's square root on the CPU (MKL's) is not always the nearest number, a fifth of float32 roots differ in the last
bit, and its mean of squares is summed, in float64 as in the kernel, in another order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nestlab.embedding.optimizers import SGD, Adagrad, LazyAdam, RowOptimizer, RowWiseAdagrad, StepInfo


def update(optimizer: RowOptimizer, records: Tensor, rows: Tensor, grads: Tensor, step: StepInfo) -> None:
    """One step, in place, without waiting for the device.

    Args:
        records: [N, dim + state_width(dim)].
        rows: [U] int64 on the records' device, no row twice.
        grads: [U, dim] on the records' device, of their dtype.
    """
    lr = optimizer.lr if step.lr is None else step.lr
    touched = records.index_select(0, rows)
    _STEPS[type(optimizer)](optimizer, touched, grads, lr, step.number)
    records.index_copy_(0, rows, touched)


def _sgd(optimizer: SGD, touched: Tensor, grads: Tensor, lr: float, number: int) -> None:
    touched += grads * -lr


def _adagrad(optimizer: Adagrad, touched: Tensor, grads: Tensor, lr: float, number: int) -> None:
    weight, state = touched.split(grads.shape[1], dim=1)
    state += grads * grads
    weight += grads * -lr / (state.sqrt() + optimizer.eps)


def _rowwise_adagrad(optimizer: RowWiseAdagrad, touched: Tensor, grads: Tensor, lr: float, number: int) -> None:
    weight, state = touched.split([grads.shape[1], 1], dim=1)
    wide = grads.double()
    state += (wide * wide).mean(dim=1, keepdim=True).to(state.dtype)
    rate = torch.tensor(lr, dtype=state.dtype)
    weight -= rate / ((state / optimizer.state_scale).sqrt() + optimizer.eps) * grads


def _lazy_adam(optimizer: LazyAdam, touched: Tensor, grads: Tensor, lr: float, number: int) -> None:
    beta1, beta2 = optimizer.betas
    step_size = lr * math.sqrt(1 - beta2**number) / (1 - beta1**number)
    weight, mean, square = touched.split(grads.shape[1], dim=1)
    mean += (grads - mean) * (1.0 - beta1)
    square += (grads * grads - square) * (1.0 - beta2)
    weight += mean / (square.sqrt() + optimizer.eps) * -step_size


_STEPS = {SGD: _sgd, Adagrad: _adagrad, RowWiseAdagrad: _rowwise_adagrad, LazyAdam: _lazy_adam}
