"""EcoRec by torch alone, on any device and for any shape: batched products over the unique prefixes of a slice.

What a slice holds (products of every level, in backward their gradients too) is what slices divide. The slices of cores
that a batched product needs beside each other are gathered a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.ecorec_plan import Plan, Span
from nestlab.embedding.tensor_train.schemes.chain import add_rows
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

CHUNK = 1024  # products at once on a CPU, whose cache the gathered slices should fit
DEVICE_CHUNK = 16384  # and elsewhere


def widths(shape: TTShape) -> tuple[int, ...]:
    """[d − 1]: numbers in the product of an item of each level; of a row they are its weights."""
    before, result = shape.dim_factors[0], []
    for _, q, rank in shape.slices[1:]:
        before *= q
        result.append(before * rank)
    return tuple(result)


def forward(shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work, spans: Sequence[Span]) -> Tensor:
    """[bags, dim]; see `Scheme.forward`."""
    out = cores[0].new_zeros(plan.bags.count, shape.dim)
    for span in spans:
        part = Part(shape, cores, plan, work, span)
        products = part.products(shape.cores - 1)
        with work.hold(*products):
            part.pool(products[-1], out)
    return out


def backward(
    shape: TTShape,
    cores: Sequence[Tensor],
    plan: Plan,
    grad: Tensor,
    into: Sequence[Tensor],
    work: Work,
    spans: Sequence[Span],
) -> None:
    """Contracts to unique rows, multiplies, contracts to prefixes, multiplies …; see `Scheme.backward`."""
    for span in spans:
        part = Part(shape, cores, plan, work, span)
        products = part.products(shape.cores - 2)
        with work.hold(*products):
            part.differentiate(products, grad, into)


@dataclass(frozen=True, eq=False)
class Part:
    """One slice of a look-up."""

    shape: TTShape
    cores: Sequence[Tensor]
    plan: Plan
    work: Work
    span: Span

    def products(self, levels: int) -> list[Tensor]:
        """The products of the first levels, [n_k, q_1 … q_(k+1), r_(k+1)] each, an item of a level once."""
        products: list[Tensor] = []
        for k in range(levels):
            out = self._like(k, self.span.levels[k])
            for rows, parent, digit in self._chunks(k):
                left, right = self._left(products, k, parent), self._right(k, digit)
                with self.work.hold(left, right):
                    self._multiply(left, right, out[rows])
            products.append(out.view(out.shape[0], -1, self.shape.all_ranks[k + 2]))
        return products

    def pool(self, rows: Tensor, out: Tensor) -> None:
        """Adds the unique rows to the bags that hold them."""
        each, bag, weight = self._indices()
        values = rows.view(rows.shape[0], -1).index_select(0, each)
        with self.work.hold(values, each):
            _add(out, bag, values if weight is None else values.mul_(weight))

    def differentiate(self, products: list[Tensor], grad: Tensor, into: Sequence[Tensor]) -> None:
        """Adds the gradients of the cores; `products` of the levels but the last."""
        held = self._contract(grad)
        for k in reversed(range(self.shape.cores - 1)):
            upper = torch.zeros_like(products[k - 1]) if k > 0 else None
            with self.work.hold(held, *([] if upper is None else [upper])):
                self.differentiate_level(k, products, held, upper, into)
            held = upper

    def _contract(self, grad: Tensor) -> Tensor:
        """[n_u, dim]: the gradient of each unique row, summed over the bags that hold it."""
        each, bag, weight = self._indices()
        values = grad.index_select(0, bag)
        first, end = self.span.levels[-1]
        total = grad.new_zeros(end - first, grad.shape[1])
        with self.work.hold(values, each, total):
            _add(total, each, values if weight is None else values.mul_(weight))
            return total

    def differentiate_level(self, k, products, grad, upper, into) -> None:
        """Of level k, given the gradient of its products: that of core k + 1, and of the level before or core 0."""
        for rows, parent, digit in self._chunks(k):
            left, right = self._left(products, k, parent), self._right(k, digit)
            g = grad[rows].view(left.shape[0], left.shape[1], right.shape[2])
            of_left, of_right = torch.empty_like(left), torch.empty_like(right)
            with self.work.hold(left, right, of_left, of_right):
                self._multiply(left.transpose(1, 2), g, of_right)
                _add(into[k + 1], digit, of_right.view(digit.numel(), -1))
                self._multiply(g, right.transpose(1, 2), of_left)
                target = into[0] if upper is None else upper.view(upper.shape[0], -1)
                _add(target, parent, of_left.view(parent.numel(), -1))

    def _chunks(self, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Items of level k, a chunk at a time: where they stand in the slice, parents (in the slice) and digits."""
        level, (first, end) = self.plan.levels[k], self.span.levels[k]
        base = self.span.levels[k - 1][0] if k > 0 else 0
        chunk = CHUNK if self.cores[0].device.type == "cpu" else DEVICE_CHUNK
        for at in range(first, end, chunk):
            to = min(at + chunk, end)
            yield slice(at - first, to - first), level.parent[at:to] - base, level.digit[at:to]

    def _left(self, products: list[Tensor], k: int, parent: Tensor) -> Tensor:
        """[c, q_1 … q_k, r_k]"""
        table = products[k - 1] if k > 0 else self.cores[0]
        return table.index_select(0, parent).view(parent.numel(), -1, self.shape.all_ranks[k + 1])

    def _right(self, k: int, digit: Tensor) -> Tensor:
        """[c, r_k, q·r_(k+1)]"""
        return self.cores[k + 1].index_select(0, digit).view(digit.numel(), self.shape.all_ranks[k + 1], -1)

    def _like(self, k: int, items: tuple[int, int]) -> Tensor:
        """[n, q_1 … q_k, q·r]"""
        _, q, rank = self.shape.slices[k + 1]
        return self.cores[0].new_empty(items[1] - items[0], widths(self.shape)[k] // (q * rank), q * rank)

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        torch.bmm(left, right, out=out)
        self.work.operations += 2 * left.shape[2] * out.numel()

    def _indices(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of each sorted index: its unique row in this slice, its bag, its weight [n, 1]."""
        first, end = self.span.indices
        order = self.plan.order[first:end]
        weights = self.plan.bags.weights
        each = self.plan.inverse.index_select(0, order) - self.span.levels[-1][0]
        return each, self.plan.bag[first:end], None if weights is None else weights.index_select(0, order)[:, None]


def _add(into: Tensor, index: Tensor, rows: Tensor) -> None:
    add_rows(into, index.long(), rows)
