"""The cores of one tensor-train table: `[weight | optimizer state]` records, a slice of a core each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import optimizers_torch, record_kernels
from nestlab.embedding.config import TableConfig
from nestlab.embedding.keyset import int64_array
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.errors import UserError
from nestlab.jit import jit

_CHUNK = 4096  # rows multiplied at once by the reference
CUT = 2.0  # initial weights are normal, those within ±CUT standard deviations left out


class Cores:
    """Records of d cores; a slice of a core is to the row optimizers what a row is elsewhere.

    Attributes:
        shape: which slices there are.
        records: per core [p_k, width_k + state_k], contiguous.
    """

    def __init__(
        self,
        shape: TTShape,
        optimizer: RowOptimizer,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Weights are 0, and state is what the optimizer starts with."""
        self.shape = shape
        self.records = tuple(
            torch.zeros(p, width + optimizer.state_width(width), dtype=dtype, device=device)
            for p, width in zip(shape.row_factors, shape.widths, strict=True)
        )
        for state in self.states:
            state.fill_(optimizer.initial_state)

    @classmethod
    def initial(
        cls,
        table: TableConfig,
        optimizer: RowOptimizer,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Cores:
        """Cores whose decompressed rows have the variance of an ordinary table's: that of a uniform number in ±bound.

        A row's weight is a sum over Πr paths of a product of d independent core weights of mean 0, so its variance is
        Πr · Πσ_k²; all σ_k² = (bound² / 3 / Πr)^(1/d). The core weights are normal with the part within ±2 standard
        deviations left out, rescaled (TT-Rec's sampled Gaussian, arXiv 2101.11714): products of plain normal numbers
        crowd at 0. A function of seed, table name, core, slice and column, and of nothing else.
        """
        cores = cls(table.tensor_train.shape_of(table.dim), optimizer, dtype, device)
        sigma = (table.bound**2 / 3 / math.prod(cores.shape.ranks)) ** (0.5 / cores.shape.cores)
        for k, weight in enumerate(cores.weights):
            weight.copy_(torch.from_numpy(_sampled_gaussian(tuple(weight.shape), _salt(table.name, seed, k)) * sigma))
        return cores

    @property
    def dtype(self) -> torch.dtype:
        return self.records[0].dtype

    @property
    def device(self) -> torch.device:
        return self.records[0].device

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """[p_k, width_k] views; rows lie apart where there is optimizer state."""
        return tuple(record[:, :width] for record, width in zip(self.records, self.shape.widths, strict=True))

    @property
    def states(self) -> tuple[Tensor, ...]:
        """[p_k, state_k] views."""
        return tuple(record[:, width:] for record, width in zip(self.records, self.shape.widths, strict=True))

    @property
    def nbytes(self) -> int:
        return sum(record.nbytes for record in self.records)

    def new_grads(self) -> tuple[Tensor, ...]:
        """Zeros [p_k, width_k] for a scheme's backward to add to."""
        return tuple(weight.new_zeros(weight.shape) for weight in self.weights)

    def touched(self, rows: Tensor) -> tuple[Tensor, ...]:
        """[p_k] bool each, in host memory: the slices of which rows [n] int64 are made."""
        factors = self.shape.row_factors
        marks = torch.zeros(sum(factors), dtype=torch.bool)
        mark_digits(int64_array(rows), np.array(factors), marks.numpy())
        return marks.split(factors)

    def apply(
        self, grads: Sequence[Tensor], touched: Sequence[Tensor], optimizer: RowOptimizer, step: StepInfo
    ) -> None:
        """One row-optimizer step over the touched slices, in place; the others keep weight and state.

        Args:
            grads: [p_k, width_k], summed over the batch.
            touched: [p_k] bool in host memory.
        """
        for records, grad, mark in zip(self.records, grads, touched, strict=True):
            slices = mark.nonzero().squeeze(1)
            if not slices.numel():
                continue
            if records.device.type == "cpu":
                picked = grad.index_select(0, slices)
                optimizer.update(records.numpy(), slices.numpy(), picked.numpy(), step)
            else:
                slices = slices.to(records.device)
                optimizers_torch.update(optimizer, records, slices, grad.index_select(0, slices), step)

    def rows(self, rows: Tensor) -> Tensor:
        """[n, dim] the weights of rows [n] int64: a product of batches of slices, without reuse; the reference."""
        return torch.cat([self._product(part) for part in rows.to(self.device).split(_CHUNK)])

    def table(self, rows: int | None = None) -> Tensor:
        """[rows, dim] the first rows (None: all Πp), from products of whole cores, a slice of the first at a time."""
        rows = self.shape.rows if rows is None else rows
        out = torch.empty(rows, self.shape.dim, dtype=self.dtype, device=self.device)
        for first, block in zip(range(0, rows, self.shape.strides[0]), self.weights[0], strict=False):
            part = expand(block, self.weights[1:], self.shape)
            out[first : first + len(part)] = part[: rows - first]
        return out

    def state_dict(self) -> dict[str, Tensor]:
        """Copies, `core.0` [p_0, width_0] … and, where there is optimizer state, `state.0` [p_0, state_0] …"""
        named = {f"core.{k}": weight for k, weight in enumerate(self.weights)}
        named |= {f"state.{k}": state for k, state in enumerate(self.states) if state.shape[1]}
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts what `state_dict` gave in place of what is here; nothing is changed if something does not fit.

        Raises:
            UserError: see `require_like`.
        """
        require_like(tensors, self.state_dict(), "cores")
        for kind, parts in (("core", self.weights), ("state", self.states)):
            for k, part in enumerate(parts):
                if part.shape[1]:
                    part.copy_(tensors[f"{kind}.{k}"])

    def _product(self, rows: Tensor) -> Tensor:
        left, size = torch.ones(len(rows), 1, 1, dtype=self.dtype, device=self.device), 1
        for k, (r_in, q, r_out) in enumerate(self.shape.slices):
            digits = rows // self.shape.strides[k] % self.shape.row_factors[k]
            left = torch.bmm(left, self.weights[k].index_select(0, digits).view(len(rows), r_in, q * r_out))
            size *= q
            left = left.view(len(rows), size, r_out)
        return left.squeeze(2)


def expand(block: Tensor, others: Sequence[Tensor], shape: TTShape) -> Tensor:
    """[Πp after the first, dim]: all rows that begin with one slice, block [width_0], of the first core.

    Args:
        others: the cores after it, [p_k, width_k] each.
    """
    left = block.reshape(1, shape.dim_factors[0], -1)
    for weight, (r_in, q, r_out) in zip(others, shape.slices[1:], strict=True):
        left = torch.einsum("PQr,prqs->PpQqs", left, weight.reshape(-1, r_in, q, r_out))
        left = left.reshape(left.shape[0] * left.shape[1], -1, r_out)
    return left.squeeze(2)


def require_like(tensors: Mapping[str, Tensor], mine: Mapping[str, Tensor], where: str) -> None:
    """Raises UserError unless `tensors` has the names of `mine`, and under each the same size and dtype."""
    if sorted(mine) != sorted(tensors):
        given, asked = ", ".join(sorted(tensors)) or "nothing", ", ".join(sorted(mine))
        raise UserError(
            f"{where}: {given} given for {asked}; use the number of cores, the optimizer and the hot_rows of the table "
            "that was saved"
        )
    for name, tensor in mine.items():
        other = tensors[name]
        if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
            raise UserError(
                f"{where}: {name} is {other.dtype} {list(other.shape)} for {tensor.dtype} {list(tensor.shape)}; use "
                "the shape, ranks, dtype and hot_rows of the table that was saved"
            )


def warm_up() -> None:
    """Compiles the kernel, or loads it."""
    mark_digits(np.zeros(0, dtype=np.int64), np.ones(2, dtype=np.int64), np.zeros(2, dtype=bool))


@jit
def mark_digits(rows, factors, marks):
    """Sets, in marks [Σp] bool, the digits of rows [n] int64 in the mixed base factors [d] int64, core after core."""
    for i in range(rows.size):
        rest, start = rows[i], marks.size
        for k in range(factors.size - 1, 0, -1):
            start -= factors[k]
            marks[start + rest % factors[k]] = True
            rest //= factors[k]
        marks[rest] = True


def _salt(table: str, seed: int, core: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{core}/{table}".encode(), digest_size=8, person=b"nestlab-tt-core").digest()
    return int.from_bytes(digest, "little")


def _sampled_gaussian(size: tuple[int, int], salt: int) -> np.ndarray:
    """[slices, width] float64 of variance 1, by inversion of the counter-based uniform numbers that rows start with."""
    from scipy.special import ndtr, ndtri  # late: few processes make cores, and it takes a third of a second

    uniform, slices = np.empty(size), np.arange(size[0])
    bounds = np.ones(1)
    record_kernels.initialise(
        uniform, slices, slices, np.zeros(size[0], np.int64), np.array([salt], np.uint64), bounds, size[1], 0.0
    )
    tail = ndtr(-CUT)
    cut = -ndtri(tail * (1.0 - np.abs(uniform)))  # |uniform| < 1
    return np.copysign(cut, uniform) / math.sqrt(_tail_variance(CUT))


def _tail_variance(cut: float) -> float:
    """Of a standard normal number beyond ±cut: 1 + cut·φ(cut) / Φ(−cut)."""
    from scipy.special import ndtr

    return 1.0 + cut * math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi) / float(ndtr(-cut))
