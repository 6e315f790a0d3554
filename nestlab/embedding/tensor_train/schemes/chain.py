"""A chunk of rows as chains of small products: what TT-Rec does for every index, and EL-Rec for every unique row.

All products of a chunk are one batched GEMM per core, in buffers made once a call. The last product, [Q, r] × [r, q] of
few columns (q is q_d, Q the weights before it), is computed turned, [q, r] × [r, Q]: with wide rows a batched GEMM of
this size runs two to four times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

CHUNK_BYTES = 2 << 20  # of the largest gathered slices of a chunk, by measurement; they should stay in the cache


def fitting_chunk(shape: TTShape, itemsize: int) -> int:
    """Rows at once whose slices stay in the cache: a power of two from 64 to 4,096."""
    rows = CHUNK_BYTES // (itemsize * max(shape.widths))
    return min(4096, max(64, 1 << max(rows, 1).bit_length() - 1))


def digits_of(shape: TTShape, rows: Tensor) -> Tensor:
    """[d, n] int64 of rows [n] int64, on their device."""
    out = rows.new_empty(shape.cores, rows.numel())
    for k, (stride, p) in enumerate(zip(shape.strides, shape.row_factors, strict=True)):
        torch.div(rows, stride, rounding_mode="floor", out=out[k])
        out[k].remainder_(p)
    return out


def multiply(left: Tensor, right: Tensor, out: Tensor, work: Work) -> None:
    """out [n, a, c] = left [n, a, b] × right [n, b, c], counted."""
    torch.bmm(left, right, out=out)
    work.operations += 2 * out.numel() * left.shape[2]


def add_rows(into: Tensor, index: Tensor, rows: Tensor) -> None:
    """into[index[i]] += rows[i], in an order that does not change from run to run."""
    if into.device.type == "cpu":
        into.index_add_(0, index, rows)
    else:  # index_add_ is atomic there, hence of any order; this one sorts
        into.index_put_((index,), rows, accumulate=True)


@dataclass(frozen=True, eq=False)
class Chain:
    """Buffers of up to `size` rows and the products between them; made by `of`, ended by `drop`.

    Attributes:
        slices: [size, width_k] of core k = 2 … d (the first core's slices are the first prefixes).
        prefixes: [size, Q_k·r_k], k = 1 … d − 1: products of the first k slices; Q_k is q_1 · … · q_k.
        rows: [size, dim].
        turned: [size, dim], rows as [q_d, Q_(d−1)].
    """

    shape: TTShape
    work: Work
    slices: tuple[Tensor, ...]
    prefixes: tuple[Tensor, ...]
    rows: Tensor
    turned: Tensor

    @classmethod
    def of(cls, shape: TTShape, size: int, like: Tensor, work: Work) -> Chain:
        def empty(width: int) -> Tensor:
            return work.empty(size, width, dtype=like.dtype, device=like.device)

        return cls(
            shape,
            work,
            tuple(map(empty, shape.widths[1:])),
            tuple(map(empty, prefix_widths(shape))),
            empty(shape.dim),
            empty(shape.dim),
        )

    def drop(self) -> None:
        self.work.drop(*self.slices, *self.prefixes, self.rows, self.turned)

    def products(self, cores: Sequence[Tensor], digits: Tensor) -> Tensor:
        """[n, dim], a view of a buffer, of digits [d, n]."""
        self.multiply_prefixes(cores, digits)
        return self.finish(cores, digits[-1], self.prefixes[-1][: digits.shape[1]])

    def multiply_prefixes(self, cores: Sequence[Tensor], digits: Tensor) -> None:
        """Fills the prefixes of digits [≥ d − 1, n]."""
        count = digits.shape[1]
        torch.index_select(cores[0], 0, digits[0], out=self.prefixes[0][:count])
        for k in range(1, self.shape.cores - 1):
            self.extend(cores, k, digits[k], self.prefixes[k - 1][:count])

    def extend(self, cores: Sequence[Tensor], k: int, digit: Tensor, before: Tensor) -> Tensor:
        """[n, ·] (a view of prefixes[k]): prefixes of k cores `before` [n, ·], times core k (from 0) at `digit` [n]."""
        out = self.prefixes[k][: digit.numel()]
        slices = self._gather(cores, k, digit)
        multiply(before.view(digit.numel(), -1, slices.shape[1]), slices, self._wide(out, k), self.work)
        return out

    def finish(self, cores: Sequence[Tensor], digit: Tensor, prefixes: Tensor) -> Tensor:
        """[n, dim], a view of a buffer: prefixes [n, Q·r] of d − 1 cores, times the last core at `digit` [n]."""
        slices = self._gather(cores, -1, digit)
        count, rank, q = slices.shape
        before = prefixes.view(count, -1, rank)
        turned = self.turned[:count].view(count, q, -1)
        multiply(slices.transpose(1, 2), before.transpose(1, 2), turned, self.work)
        self.rows[:count].view(count, -1, q).copy_(turned.transpose(1, 2))
        return self.rows[:count]

    def _gather(self, cores: Sequence[Tensor], k: int, digit: Tensor) -> Tensor:
        """[n, r_(k−1), q_k·r_k], a view of a buffer: slices of core k (from 0, not the first) at `digit` [n]."""
        out = self._slices(k, digit.numel())
        torch.index_select(cores[k], 0, digit, out=out.view(digit.numel(), -1))
        return out

    def _slices(self, k: int, count: int) -> Tensor:
        """[count, r_(k−1), q_k·r_k]: the buffer of core k (from 0, not the first)."""
        return self.slices[k - 1 if k > 0 else k][:count].view(count, self.shape.slices[k][0], -1)

    def _wide(self, prefixes: Tensor, k: int) -> Tensor:
        """[n, Q_(k−1), q_k·r_k] of prefixes [n, ·] of core k (from 0): as the product that makes them sees them."""
        _, q, rank = self.shape.slices[k]
        return prefixes.view(prefixes.shape[0], -1, q * rank)


def prefix_widths(shape: TTShape) -> tuple[int, ...]:
    """Q_k·r_k, k = 1 … d − 1: numbers in a product of k slices."""
    before = tuple(accumulate(shape.dim_factors, lambda a, b: a * b))
    return tuple(q * rank for q, rank in zip(before, shape.ranks, strict=False))


@dataclass(frozen=True, eq=False)
class Backward:
    """The gradients of chunks, added core by core; made by `of`, ended by `finish`.

    Attributes:
        chain: its prefixes are recomputed; its slices become, one core after the other, their own gradients.
        grads: [size, Q_k·r_k], k = 1 … d − 1: gradients of the prefixes.
        sums: where gradients are added, [p_k, width_k]; of the last core turned, [p_d, q_d·r].
        into: where they belong in the end.
    """

    chain: Chain
    grads: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]
    into: Sequence[Tensor]

    @classmethod
    def of(cls, chain: Chain, into: Sequence[Tensor]) -> Backward:
        def own(tensor: Tensor) -> Tensor:
            return chain.work.empty(*tensor.shape, dtype=tensor.dtype, device=tensor.device).zero_()

        grads = tuple(chain.work.empty(*each.shape, dtype=each.dtype, device=each.device) for each in chain.prefixes)
        # Adding to rows that lie apart is many times slower: they get their sum at the end.
        sums = (*(each if each.is_contiguous() else own(each) for each in into[:-1]), own(into[-1]))
        return cls(chain, grads, sums, into)

    def add(self, cores: Sequence[Tensor], digits: Tensor, grad: Tensor) -> None:
        """Adds what the gradient `grad` [n, dim] of the rows with digits [d, n] gives every core."""
        self.chain.multiply_prefixes(cores, digits)
        self._last(cores, digits[-1], grad)
        for k in range(self.chain.shape.cores - 2, 0, -1):
            self._middle(k, digits[k])
        add_rows(self.sums[0], digits[0], self.grads[0][: digits.shape[1]])

    def _last(self, cores: Sequence[Tensor], digit: Tensor, grad: Tensor) -> None:
        chain = self.chain
        slices = chain._gather(cores, -1, digit)
        count, rank, q = slices.shape
        grad = grad.view(count, -1, q)
        multiply(grad, slices.transpose(1, 2), self.grads[-1][:count].view(count, -1, rank), chain.work)
        turned = slices.view(count, q, rank)  # the slices are no longer needed: their memory takes the gradients
        multiply(grad.transpose(1, 2), chain.prefixes[-1][:count].view(count, -1, rank), turned, chain.work)
        add_rows(self.sums[-1], digit, turned.view(count, -1))

    def _middle(self, k: int, digit: Tensor) -> None:
        chain, count = self.chain, digit.numel()
        slices = chain._slices(k, count)  # as the recomputation of the prefixes gathered them
        rank = slices.shape[1]
        grad = chain._wide(self.grads[k][:count], k)
        multiply(grad, slices.transpose(1, 2), self.grads[k - 1][:count].view(count, -1, rank), chain.work)
        before = chain.prefixes[k - 1][:count].view(count, -1, rank)
        multiply(before.transpose(1, 2), grad, slices, chain.work)
        add_rows(self.sums[k], digit, slices.view(count, -1))

    def finish(self) -> None:
        """Brings the sums to where they belong and ends the buffers (those of the chain too)."""
        chain = self.chain
        for each, total in zip(self.into[:-1], self.sums[:-1], strict=True):
            if total is not each:
                each.add_(total)
                chain.work.drop(total)
        rank, q = chain.shape.ranks[-1], chain.shape.dim_factors[-1]
        turned = self.sums[-1].view(-1, q, rank).transpose(1, 2)
        self.into[-1].add_(turned.reshape(-1, rank * q))
        chain.work.drop(self.sums[-1], *self.grads)
        chain.drop()
