"""Row optimizers: what the state of a record is, and one step on gradients already summed per key.

Momentum-free by choice: each has a state that only a touched row changes, so that a step over the touched rows is the
whole step (the exactness of caches and of prefetch rests on this).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nestlab.embedding import record_kernels
from nestlab.errors import UserError


@dataclass(frozen=True)
class StepInfo:
    """What travels with a batch to its update, captured when the batch is planned.

    Attributes:
        number: of the optimizer step, from 1.
        lr: the learning rate of this step; None stands for the optimizer's own.
    """

    number: int
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"StepInfo: step numbers start at 1, not {self.number}")


@dataclass(frozen=True)
class RowOptimizer(ABC):
    """A row optimizer; `lr` is the learning rate of steps that name none."""

    lr: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            if not all(math.isfinite(v) and v >= 0 for v in (value if isinstance(value, tuple) else (value,))):
                raise UserError(f"optimizer {self.name}: {field} is {value}; give a finite number ≥ 0")

    @abstractmethod
    def state_width(self, dim: int) -> int:
        """Elements of state behind a weight of `dim` elements."""

    @property
    def initial_state(self) -> float:
        """What every element of state starts with."""
        return 0.0

    def update(self, records: np.ndarray, rows: np.ndarray, grads: np.ndarray, step: StepInfo) -> None:
        """One step, in place.

        Args:
            records: [N, dim + state_width(dim)].
            rows: [U] int64, no row twice.
            grads: [U, dim], contiguous, of the records' dtype.
        """
        self._update(records, rows, grads, self.lr if step.lr is None else step.lr, step.number)

    @abstractmethod
    def _update(self, records: np.ndarray, rows: np.ndarray, grads: np.ndarray, lr: float, number: int) -> None: ...


@dataclass(frozen=True)
class SGD(RowOptimizer):
    """torch.optim.SGD without momentum."""

    name: ClassVar[str] = "sgd"

    def state_width(self, dim: int) -> int:
        return 0

    def _update(self, records, rows, grads, lr, number) -> None:
        record_kernels.sgd(records, rows, grads, float(lr))


@dataclass(frozen=True)
class Adagrad(RowOptimizer):
    """torch.optim.Adagrad without decay: one sum of squares a weight."""

    eps: float = 1e-10
    initial_accumulator: float = 0.0
    name: ClassVar[str] = "adagrad"

    def state_width(self, dim: int) -> int:
        return dim

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator

    def _update(self, records, rows, grads, lr, number) -> None:
        record_kernels.adagrad(records, rows, grads, float(lr), float(self.eps))


@dataclass(frozen=True)
class RowWiseAdagrad(RowOptimizer):
    """fbgemm's exact row-wise Adagrad: one sum of mean squares a row.

    Attributes:
        state_scale: the sum counts 1/state_scale in the step, w −= lr·g/(√(s/c) + ε): the momentum-scaled form of 2D
            sparse parallelism (arXiv 2508.03854), whose states are averaged over c groups of ranks.
    """

    eps: float = 1e-8
    state_scale: float = 1.0
    name: ClassVar[str] = "rowwise_adagrad"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_scale <= 0:
            raise UserError(f"optimizer {self.name}: state_scale is {self.state_scale}; give a number above 0")

    def state_width(self, dim: int) -> int:
        return 1

    def _update(self, records, rows, grads, lr, number) -> None:
        record_kernels.rowwise_adagrad(records, rows, grads, float(lr), float(self.eps), float(self.state_scale))


@dataclass(frozen=True)
class LazyAdam(RowOptimizer):
    """torch.optim.SparseAdam: only touched rows decay; bias correction by the global step number."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    name: ClassVar[str] = "lazy_adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise UserError(f"optimizer {self.name}: betas are {self.betas}; give two numbers in [0, 1)")

    def state_width(self, dim: int) -> int:
        return 2 * dim

    def _update(self, records, rows, grads, lr, number) -> None:
        beta1, beta2 = self.betas
        step_size = lr * math.sqrt(1 - beta2**number) / (1 - beta1**number)
        record_kernels.lazy_adam(records, rows, grads, step_size, float(beta1), float(beta2), float(self.eps))


OPTIMIZERS: dict[str, type[RowOptimizer]] = {kind.name: kind for kind in (SGD, Adagrad, RowWiseAdagrad, LazyAdam)}


def optimizer(name: str, **options) -> RowOptimizer:
    """The row optimizer called `name` (sgd, adagrad, rowwise_adagrad, lazy_adam).

    Raises:
        UserError: no optimizer is called so, or it does not take one of the options.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"unknown optimizer '{name}'; use one of {', '.join(OPTIMIZERS)}")
    try:
        return OPTIMIZERS[name](**options)
    except TypeError as error:
        raise UserError(f"optimizer {name}: {error}; check the names of its options") from error
