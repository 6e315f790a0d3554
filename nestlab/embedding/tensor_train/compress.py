"""From an existing dense table to cores: TT-SVD (Oseledets, "Tensor-train decomposition", 2011, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.cores import expand
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.errors import UserError


@dataclass(frozen=True, eq=False)
class Compressed:
    """A dense table as cores.

    Attributes:
        shape: as asked for, the ranks as found: never above those asked for, and no larger than the table needs.
        cores: per core [p_k, width_k] float64; all have the same mean square.
        error: ‖table − rows of the cores‖ / ‖table‖ over the table's own rows (Frobenius); 0 of a table of zeros.
    """

    shape: TTShape
    cores: tuple[Tensor, ...]
    error: float


def compress(table: Tensor, shape: TTShape, error: float | None = None) -> Compressed:
    """TT-SVD of table [M, dim], M ≤ Πp; rows up to Πp are padded with zeros. Computed in float64, in host memory.

    One core after the other is split off by a singular value decomposition; the smallest singular values are dropped.

    Args:
        shape: its ranks are the largest kept; with `error`, they are not looked at.
        error: keep as few as this relative error (Frobenius) allows: each of the d − 1 steps may drop a part of
            error / √(d − 1).

    Raises:
        UserError: the table is larger than the shape, of another dim, not finite, or the error is not a number ≥ 0.
    """
    _check(table, shape, error)
    dense = table.detach().to("cpu", torch.float64)
    rest, norm = _unfold(dense, shape), float(torch.linalg.vector_norm(dense))
    most = shape.ranks if error is None else (rest.numel(),) * (shape.cores - 1)
    drop = 0.0 if error is None else error * norm / math.sqrt(shape.cores - 1)
    cores, ranks = [], [1]
    for k in range(shape.cores - 1):
        rest = rest.reshape(ranks[-1] * shape.row_factors[k] * shape.dim_factors[k], -1)
        basis = _basis(rest, most[k], drop)
        rest = basis.T @ rest
        cores.append(basis)
        ranks.append(basis.shape[1])
    found = replace(shape, ranks=tuple(ranks[1:]))
    weights = _balanced([_layout(core, found, k) for k, core in enumerate((*cores, rest))])
    difference = _difference(dense, weights, found)
    return Compressed(found, weights, difference / norm if norm else difference)


def _check(table: Tensor, shape: TTShape, error: float | None) -> None:
    if table.dim() != 2 or table.shape[0] > shape.rows or table.shape[1] != shape.dim:
        raise UserError(
            f"compress: a table of {list(table.shape)} does not fit a shape of {shape.rows} rows × {shape.dim}; give "
            "row factors whose product is at least its rows, and dim factors whose product is its columns"
        )
    if not torch.isfinite(table).all():
        raise UserError("compress: the table has weights that are not finite; repair them first")
    if error is not None and not (error >= 0 and math.isfinite(error)):
        raise UserError(f"compress: error={error}; give a finite number ≥ 0")


def _unfold(dense: Tensor, shape: TTShape) -> Tensor:
    """[p_1·q_1, …, p_d·q_d] flattened: digit k of the row beside factor k of the column."""
    d, padded = shape.cores, dense.new_zeros(shape.rows, shape.dim)
    padded[: len(dense)] = dense
    order = [axis for k in range(d) for axis in (k, d + k)]
    return padded.view(*shape.row_factors, *shape.dim_factors).permute(order).reshape(-1)


def _basis(matrix: Tensor, most: int, drop: float) -> Tensor:
    """[m, r] the left singular vectors of matrix [m, n], r ≤ most, that leave out at most `drop` (Frobenius), r ≥ 1.

    Of a wide matrix the triangular factor of its transpose has the same ones, at a fraction of the cost.
    """
    if matrix.shape[1] > matrix.shape[0]:
        matrix = torch.linalg.qr(matrix.T, mode="r").R.T
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    left_out = values.square().flip(0).cumsum(0).sqrt().flip(0)  # by keeping as many as the place says
    needed = int((left_out > drop).sum())
    return left[:, : max(1, min(needed, most))]


def _layout(core: Tensor, shape: TTShape, k: int) -> Tensor:
    """[p_k, r_(k−1)·q_k·r_k] of [r_(k−1)·p_k·q_k, r_k]."""
    r_in, q, r_out = shape.slices[k]
    return core.reshape(r_in, shape.row_factors[k], q, r_out).transpose(0, 1).reshape(shape.row_factors[k], -1)


def _balanced(cores: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same product from cores of one mean square: one learning rate then suits all of them."""
    spreads = [float(core.square().mean().sqrt()) for core in cores]
    if min(spreads) == 0:
        return tuple(cores)
    common = math.exp(sum(map(math.log, spreads)) / len(spreads))
    return tuple(core * (common / spread) for core, spread in zip(cores, spreads, strict=True))


def _difference(dense: Tensor, cores: Sequence[Tensor], shape: TTShape) -> float:
    """‖dense − what the cores give‖, computed from what they give, a slice of the first core at a time."""
    total, stride = 0.0, shape.strides[0]
    for first, block in zip(range(0, len(dense), stride), cores[0], strict=False):
        part = expand(block, cores[1:], shape)[: len(dense) - first]
        total += float((dense[first : first + len(part)] - part).square().sum())
    return math.sqrt(total)
