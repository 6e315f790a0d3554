"""Row optimizers once more, a row at a time in float64 and in closed form: what records are checked against."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nestlab.embedding.optimizers import LazyAdam, RowOptimizer

Learnt = Sequence[tuple[int, np.ndarray]]  # (step number, gradient [dim]) of each step that touched a row, in order


def record(optimizer: RowOptimizer, weight: np.ndarray, learnt: Learnt) -> np.ndarray:
    """[dim + states] float64: weight and states of a row that began with `weight` [dim] and no state."""
    for last, (number, grad) in enumerate(learnt, 1):
        found = states(optimizer, [each for _, each in learnt[:last]])
        weight = weight - optimizer.lr * _direction(optimizer, grad, found, number)
    return np.concatenate([weight, *states(optimizer, [each for _, each in learnt])])


def states(optimizer: RowOptimizer, grads: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Adagrad: the sum of squares. Row-wise: the sum of mean squares, [1]. Lazy Adam: first and second moment, which
    decay only when the row is touched. SGD: none."""
    stacked = np.stack(grads)
    if optimizer.name == "adagrad":
        return [(stacked**2).sum(axis=0)]
    if optimizer.name == "rowwise_adagrad":
        return [(stacked**2).mean(axis=1).sum(keepdims=True)]
    if optimizer.name == "lazy_adam":
        return [_moment(stacked**power, beta) for power, beta in zip((1, 2), optimizer.betas, strict=True)]
    return []


def _moment(values: np.ndarray, beta: float) -> np.ndarray:
    """(1 − β)·Σ β^(k−i)·values[i], for values [k, dim]."""
    shares = (1 - beta) * beta ** np.arange(len(values) - 1, -1, -1)
    return shares @ values


def _direction(optimizer: RowOptimizer, grad: np.ndarray, found: list[np.ndarray], number: int) -> np.ndarray:
    if not found:
        return grad
    root = np.sqrt(found[-1]) + optimizer.eps
    if not isinstance(optimizer, LazyAdam):
        return grad / root
    beta1, beta2 = optimizer.betas
    return math.sqrt(1 - beta2**number) / (1 - beta1**number) * found[0] / root
