"""`TTTable`: one tensor-train table, from ids to pooled rows, and back with gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestlab.embedding.config import TableConfig
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.tensor_train import cores as core_module
from nestlab.embedding.tensor_train import ecorec_numba, row_numbers, schemes
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.compress import compress
from nestlab.embedding.tensor_train.cores import Cores, require_like
from nestlab.embedding.tensor_train.hot_rows import HOT, HotPart, HotRows
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.work import Work
from nestlab.embedding.warmup import warm_up
from nestlab.errors import UserError

LARGEST = 1 << 30  # bytes that `full_weight` makes without being given ids


@dataclass(frozen=True, eq=False)
class LookUp:
    """One look-up, prepared: what forward, backward and the update need to know beside the cores.

    Attributes:
        bags: what the scheme computes: all, but for hot rows.
        plan: the scheme's.
        touched: per core [p_k] bool, the slices that the update changes.
        hot: what hot rows give; None where the table has none.
    """

    bags: Bags
    plan: Any
    touched: tuple[Tensor, ...]
    hot: HotPart | None = None

    @property
    def nbytes(self) -> int:
        hot = 0 if self.hot is None else self.hot.bags.nbytes
        return self.bags.nbytes + self.plan.nbytes + sum(mark.nbytes for mark in self.touched) + hot


class TTTable:
    """A table of M × N weights as cores. Gradients of any number of look-ups add up until `apply`.

    By hand, or in a pipeline: `prepare` (needs no core, may run ahead), `forward`, `backward`, `apply`. In a model of
    one's own, with autograd:

        >>> import torch
        >>> from nestlab.embedding import SGD, StepInfo, TableConfig
        >>> from nestlab.embedding.tensor_train import TensorTrain, TTTable
        >>> table = TTTable(TableConfig("items", 8, tensor_train=TensorTrain(rows=1000, rank=4)), SGD(lr=0.1))
        >>> ids, lengths = torch.tensor([7, -5, 1 << 40, 7]), torch.tensor([3, 0, 1])
        >>> output = table.embed(ids, lengths)
        >>> output.shape
        torch.Size([3, 8])
        >>> output.backward(torch.ones_like(output))
        >>> table.apply(StepInfo(1))

    Attributes:
        config, shape, optimizer, scheme: what the table is, and how it is computed.
        cores: weights and optimizer state.
        grads, touched: per core, of the look-ups since the last `apply`.
        hot: rows held decompressed; None where there are to be none.
        work: bytes and operations of all look-ups so far.
    """

    def __init__(
        self,
        config: TableConfig,
        optimizer: RowOptimizer,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        scheme: Scheme | str = "ecorec",
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            config: with `tensor_train`.
            seed: of initial weights, as the store's.
            scheme: one of `SCHEMES` by name, or one made with options.

        Raises:
            UserError: the table is of another kind, the scheme is unknown, or the dtype is neither float32 nor float64.
        """
        if config.tensor_train is None:
            raise UserError(f"table '{config.name}' is no tensor-train table; give its TableConfig tensor_train")
        if dtype not in (torch.float32, torch.float64):
            raise UserError(f"table '{config.name}': cores are float32 or float64, not {dtype}")
        warm_up(dtype)
        row_numbers.warm_up()
        core_module.warm_up()
        ecorec_numba.warm_up(dtype)
        self.config, self.optimizer, self.scheme = config, optimizer, _scheme(scheme)
        self.cores = Cores.initial(config, optimizer, seed, dtype, device)
        self.shape = self.cores.shape
        self.hot = HotRows(config.tensor_train, self.cores, optimizer) if config.tensor_train.hot_rows else None
        self.grads = self.cores.new_grads()
        self.touched = self._untouched()
        self.work = Work()
        self._anchor = torch.zeros((), requires_grad=True)  # makes autograd come by

    @classmethod
    def from_dense(
        cls, config: TableConfig, optimizer: RowOptimizer, dense: Tensor, error: float | None = None, **options
    ) -> tuple[TTTable, float]:
        """A table that starts from an existing one, and its relative error; see `compress`.

        Args:
            config: with ids='range': row i of `dense` [M, dim] is id i. The ranks become those that `compress` finds.
            error: instead of the ranks, the relative error that they may make; None: the ranks of the config.
            options: as for a new table.

        Raises:
            UserError: ids are hashed, or see `compress`.
        """
        tensor_train = config.tensor_train
        if tensor_train is None or tensor_train.ids != "range" or tensor_train.rows != len(dense):
            raise UserError(
                f"table '{config.name}': a dense table of {len(dense)} rows becomes one of "
                f"TensorTrain(rows={len(dense)}, ids='range'), whose row i is id i; give it that"
            )
        if not dense.any():
            raise UserError(f"table '{config.name}': the dense table is all zeros, and cores of zeros never train")
        found = compress(dense, tensor_train.shape_of(config.dim), error)
        table = cls(replace(config, tensor_train=replace(tensor_train, shape=found.shape)), optimizer, **options)
        for weight, core in zip(table.cores.weights, found.cores, strict=True):
            weight.copy_(core)
        return table, found.error

    def rows(self, ids: Tensor | np.ndarray) -> Tensor:
        """[n] int64 in [0, M), in host memory: the row of each id [n].

        Raises:
            UserError: under ids='range', one is not in it.
        """
        return row_numbers.row_numbers(ids, self.config.tensor_train, self.config.name)

    def bags(self, ids: Tensor, lengths: Tensor, pooling: str | None = None, id_weights: Tensor | None = None) -> Bags:
        """Of ids [nnz] int64 in bags of lengths [B] int64.

        Args:
            pooling: `sum`, `mean`, `none` (each id a bag of its own); None: the table's.
            id_weights: [nnz], which count where pooling is `sum`, as everywhere in NestLab.
        """
        device = self.cores.device
        weights = None if id_weights is None else id_weights.to(device)
        pooling = self.config.pooling if pooling is None else pooling
        return Bags.of(self.rows(ids).to(device), lengths.to(device), pooling, weights, self.cores.dtype)

    def prepare(self, bags: Bags, train: bool = True) -> LookUp:
        """What a look-up needs beside the cores; in batch order, as far ahead as one likes.

        Args:
            train: hot rows count what is looked up, one call a batch. Otherwise nothing changes.
        """
        bags, hot = (bags, None) if self.hot is None else self.hot.split(bags, train)
        return LookUp(bags, self.scheme.prepare(self.shape, bags), self.cores.touched(bags.rows), hot)

    def forward(self, look: LookUp) -> Tensor:
        """[bags, dim], outside autograd; zeros for an empty bag. In batch order, after the update before."""
        if look.hot is not None:
            self.hot.settle(look.hot)
        out = self.scheme.forward(self.shape, self.cores.weights, look.plan, self.work)
        if look.hot is not None:
            self.hot.forward(look.hot, out, self.work)
        return out

    def backward(self, look: LookUp, grad: Tensor) -> None:
        """Adds the core gradients of one look-up, given that of its output [bags, dim], to `grads`."""
        grad = grad.detach().to(self.cores.dtype).contiguous()
        self.scheme.backward(self.shape, self.cores.weights, look.plan, grad, self.grads, self.work)
        for all_marks, marks in zip(self.touched, look.touched, strict=True):
            all_marks |= marks
        if look.hot is not None:
            self.hot.backward(look.hot, grad, self.work)

    def apply(self, step: StepInfo) -> None:
        """One row-optimizer step over the slices and hot rows that look-ups since the last one touched."""
        self.cores.apply(self.grads, self.touched, self.optimizer, step)
        if self.hot is not None:
            self.hot.apply(step)
        self.forget()

    @property
    def all_grads(self) -> tuple[Tensor, ...]:
        """What a norm of all gradients counts and a clipping scales: those of cores and of hot rows, not copies."""
        return self.grads if self.hot is None else (*self.grads, self.hot.grads)

    def forget(self) -> None:
        """Gradients start anew, without a step."""
        for grad in self.grads:
            grad.zero_()
        self.touched = self._untouched()
        if self.hot is not None:
            self.hot.forget()

    def embed(
        self, ids: Tensor, lengths: Tensor, pooling: str | None = None, id_weights: Tensor | None = None
    ) -> Tensor:
        """[B, dim] ([nnz, dim] where pooling is `none`), within autograd: backward adds to `grads`. As `bags`.

        A training look-up, which hot rows count as a batch, where gradients are enabled.
        """
        bags = self.bags(ids, lengths, pooling, id_weights)
        return _Embed.apply(self._anchor, self, self.prepare(bags, train=torch.is_grad_enabled()))

    def full_weight(self, ids: Tensor | np.ndarray | None = None) -> Tensor:
        """[n, dim] the weights of ids [n], or [M, dim] of all rows in the order of their numbers: what look-ups read.

        Raises:
            UserError: all rows would take more than LARGEST bytes.
        """
        if ids is not None:
            numbers = self.rows(ids)
            values = self.cores.rows(numbers)
            return values if self.hot is None else self.hot.overwrite(numbers, values)
        rows = self.config.tensor_train.rows
        if (size := rows * self.shape.dim * self.cores.dtype.itemsize) > LARGEST:
            raise UserError(
                f"table '{self.config.name}': all {rows} rows take {size:,} bytes decompressed, more than "
                f"{LARGEST:,}; give full_weight the ids that are asked for"
            )
        weight = self.cores.table(rows)
        return weight if self.hot is None else self.hot.overwrite(torch.arange(rows), weight)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of weights, optimizer state and hot rows by name: all that a continued training needs."""
        return self.cores.state_dict() | (self.hot.state_dict() if self.hot else {})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts what `state_dict` gave in place of what is here; pending gradients are dropped.

        Raises:
            UserError: a tensor is missing or too many, or of another shape; nothing is changed then.
        """
        require_like(tensors, self.state_dict(), f"table '{self.config.name}'")
        self.cores.load({name: tensor for name, tensor in tensors.items() if not name.startswith(HOT)})
        if self.hot is not None:
            self.hot.load({name: tensor for name, tensor in tensors.items() if name.startswith(HOT)})
        self.forget()

    @property
    def nbytes(self) -> int:
        """Bytes of cores, optimizer state, gradients and hot rows."""
        hot = 0 if self.hot is None else self.hot.nbytes
        return self.cores.nbytes + sum(grad.nbytes for grad in self.grads) + hot

    def _untouched(self) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(p, dtype=torch.bool) for p in self.shape.row_factors)


def _scheme(scheme: Scheme | str) -> Scheme:
    if not isinstance(scheme, str):
        return scheme
    if scheme not in schemes.SCHEMES:
        raise UserError(f"unknown scheme '{scheme}' of tensor-train tables; use one of {', '.join(schemes.SCHEMES)}")
    return schemes.SCHEMES[scheme]()


class _Embed(torch.autograd.Function):
    """A look-up whose backward adds to the table's own gradients, as a fused module's does."""

    @staticmethod
    def forward(ctx, anchor: Tensor, table: TTTable, look: LookUp) -> Tensor:
        ctx.table, ctx.look = table, look
        return table.forward(look)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[None, None, None]:
        ctx.table.backward(ctx.look, grad)
        return None, None, None
