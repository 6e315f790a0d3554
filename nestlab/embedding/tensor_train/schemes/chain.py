"""A chunk of rows as chains of small products: what TT-Rec does for every index, and EL-Rec for every unique row.

All products of a chunk are one batched GEMM per core, in buffers made once a call. The last product, [Q, r] × [r, q] of
few columns (q is q_d, Q the weights before it), is computed turned, [q, r] × [r, Q]: with wide rows a batched GEMM of
this size runs two to four times as fast.

Rows in the order of their second digit can be multiplied *grouped*: all rows of a run, which share that slice, are one
matrix, and one GEMM does as many operations as before without a copy of the slice for every row. See `Runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

CHUNK_BYTES = 4 << 20  # of the largest buffer of a chunk, by measurement: it should stay in the cache

Runs = Sequence[
    tuple[int, slice]
]  # (second digit, rows of the chunk that have it), all rows of a chunk in ascending order


def fitting_chunk(shape: TTShape, itemsize: int, grouped: bool = False) -> int:
    """Rows at once whose buffers stay in the cache: a power of two from 64 to 4,096."""
    # Grouped, the largest buffers are two: prefixes and their gradients.
    widest = max(*shape.widths[2:], *(2 * width for width in prefix_widths(shape))) if grouped else max(shape.widths)
    rows = CHUNK_BYTES // (itemsize * widest)
    return min(4096, max(64, 1 << max(rows, 1).bit_length() - 1))


def runs_of(starts: np.ndarray, span: slice) -> Runs:
    """Runs of the rows in `span`; starts [p_2 + 1]: where the rows of each second digit begin and end."""
    first = int(np.searchsorted(starts, span.start, "right")) - 1
    end = int(np.searchsorted(starts, span.stop, "left"))
    ends = np.clip(starts[first : end + 1], span.start, span.stop) - span.start
    return [(first + i, slice(a, b)) for i, (a, b) in enumerate(pairwise(ends.tolist())) if b > a]


def prefix_widths(shape: TTShape) -> tuple[int, ...]:
    """Q_k·r_k, k = 1 … d − 1: numbers in a product of k slices."""
    before = accumulate(shape.dim_factors[:-1], lambda a, b: a * b)
    return tuple(q * rank for q, rank in zip(before, shape.ranks, strict=True))


def digits_of(shape: TTShape, rows: Tensor) -> Tensor:
    """[d, n] int64 of rows [n] int64, on their device."""
    out = rows.new_empty(shape.cores, rows.numel())
    for k, (stride, p) in enumerate(zip(shape.strides, shape.row_factors, strict=True)):
        torch.div(rows, stride, rounding_mode="floor", out=out[k])
        out[k].remainder_(p)
    return out


def multiply(left: Tensor, right: Tensor, out: Tensor, work: Work) -> None:
    """out [n, a, c] = left [n, a, b] × right [n, b, c], or the same without n, counted."""
    (torch.bmm if out.dim() == 3 else torch.mm)(left, right, out=out)
    work.operations += 2 * out.numel() * left.shape[-1]


def add_rows(into: Tensor, index: Tensor, rows: Tensor) -> None:
    """into[index[i]] += rows[i], in an order that does not change from run to run."""
    if into.device.type == "cpu":
        into.index_add_(0, index, rows)
    else:  # index_add_ is atomic there, hence of any order; this one sorts
        into.index_put_((index,), rows, accumulate=True)


@dataclass(frozen=True, eq=False)
class Chain:
    """Buffers of up to `size` rows and the products between them; made by `of`, ended by `drop`.

    Cores are counted from 0 here, as tensors are.

    Attributes:
        cores: [p_k, width_k] each.
        slices: [size, width_k] of every core but the first, whose slices are the first prefixes; of core 1 no numbers
            if it is multiplied grouped.
        prefixes: [size, Q·r] of every core but the last: products of the slices up to it.
        rows: [size, dim].
        turned: [size, dim], rows as [q_d, Q].
    """

    shape: TTShape
    cores: Sequence[Tensor]
    work: Work
    slices: tuple[Tensor, ...]
    prefixes: tuple[Tensor, ...]
    rows: Tensor
    turned: Tensor

    @classmethod
    def of(cls, shape: TTShape, cores: Sequence[Tensor], size: int, work: Work, grouped: bool = False) -> Chain:
        def empty(width: int) -> Tensor:
            return work.empty(size, width, dtype=cores[0].dtype, device=cores[0].device)

        widths = [0 if grouped and k == 1 else width for k, width in enumerate(shape.widths)]
        return cls(
            shape,
            cores,
            work,
            tuple(map(empty, widths[1:])),
            tuple(map(empty, prefix_widths(shape))),
            empty(shape.dim),
            empty(shape.dim),
        )

    def drop(self) -> None:
        self.work.drop(*self.slices, *self.prefixes, self.rows, self.turned)

    def multiply_prefixes(self, digits: Tensor, runs: Runs | None = None) -> Tensor:
        """[n, Q·r] (a view of the last prefixes; fills all) of digits [d, n]; with `runs`, core 1 grouped."""
        out = self.prefixes[0][: digits.shape[1]]
        torch.index_select(self.cores[0], 0, digits[0], out=out)
        for k in range(1, self.shape.cores - 1):
            out = self.extend(k, digits[k], out, runs if k == 1 else None)
        return out

    def extend(self, k: int, digit: Tensor, before: Tensor, runs: Runs | None = None) -> Tensor:
        """[n, Q·r], a view of prefixes[k]: prefixes `before` [n, ·] of k cores, times core k at `digit` [n]."""
        out = self.prefixes[k][: digit.numel()]
        left, wide = self.narrow(before, k), self.wide(out, k)
        if runs is None:
            multiply(left, self.gather(k, digit), wide, self.work)
        else:
            for value, part in runs:
                multiply(left[part].flatten(0, 1), self.slice(k, value), wide[part].flatten(0, 1), self.work)
        return out

    def finish(self, digit: Tensor, prefixes: Tensor) -> Tensor:
        """[n, dim], a view of a buffer: prefixes [n, Q·r] of d − 1 cores, times the last core at `digit` [n]."""
        slices = self.gather(-1, digit)
        count, _, q = slices.shape
        turned = self.turned[:count].view(count, q, -1)
        multiply(slices.transpose(1, 2), self.narrow(prefixes, -1).transpose(1, 2), turned, self.work)
        self.rows[:count].view(count, -1, q).copy_(turned.transpose(1, 2))
        return self.rows[:count]

    def gather(self, k: int, digit: Tensor) -> Tensor:
        """[n, r_in, q·r_out], a view of a buffer: slices of core k at `digit` [n]."""
        out = self.gathered(k, digit.numel())
        torch.index_select(self.cores[k], 0, digit, out=out.view(digit.numel(), -1))
        return out

    def gathered(self, k: int, count: int) -> Tensor:
        """[count, r_in, q·r_out]: the buffer of core k as `gather` left it."""
        return self.slices[k - 1 if k > 0 else k][:count].view(count, self.shape.slices[k][0], -1)

    def slice(self, k: int, value: int) -> Tensor:
        """[r_in, q·r_out], a view of core k."""
        return self.cores[k][value].view(self.shape.slices[k][0], -1)

    def narrow(self, prefixes: Tensor, k: int) -> Tensor:
        """[n, Q, r_in] of prefixes [n, ·] of the cores before k: as what core k multiplies."""
        return prefixes.view(prefixes.shape[0], -1, self.shape.slices[k][0])

    def wide(self, prefixes: Tensor, k: int) -> Tensor:
        """[n, Q, q·r_out] of prefixes [n, ·] up to core k: as what comes out of that."""
        _, q, rank = self.shape.slices[k]
        return prefixes.view(prefixes.shape[0], -1, q * rank)
