"""EL-Rec (Wang et al., 2022): prefixes multiplied once in forward; gradients summed to unique rows before backward.

The last product is still done for every index, and backward reuses no prefix. Where EL-Rec marks what is computed by
atomic flags on the device, indices are sorted here: that finds equal ones, and the products of a chunk of prefixes are
used while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes.chain import Backward, Chain, add_rows, digits_of
from nestlab.embedding.tensor_train.schemes.tt_rec import bag_of, chunk_size, chunks
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


@dataclass(frozen=True, eq=False)
class Level:
    """Unique prefixes of k digits, ascending; or, as the last level, all indices, sorted by row.

    Attributes:
        digit: [n] int64, the last digit of each.
        parent: [n] int64, the place of its prefix of k − 1 digits in the level before; in the first level (k = 2): i_1.
        starts: [n of the level before + 1], where each one's children begin and end, in host memory; first level: None.
    """

    digit: Tensor
    parent: Tensor
    starts: np.ndarray | None


@dataclass(frozen=True, eq=False)
class ELRecPlan:
    """Indices in ascending order of row.

    Attributes:
        levels: unique prefixes of 2 … d − 1 digits, and then the indices themselves.
        unique: [d, n_u] int64, digits of the unique rows.
        row: [nnz] int64, the place of every index's row in `unique`.
        starts: [n_u + 1], where each one's indices begin and end, in host memory.
        bag: [nnz] int64.
        weights: [nnz] or None.
        bags: how many.
    """

    levels: tuple[Level, ...]
    unique: Tensor
    row: Tensor
    starts: np.ndarray
    bag: Tensor
    weights: Tensor | None
    bags: int

    @property
    def nbytes(self) -> int:
        tensors = [self.unique, self.row, self.bag, *(t for each in self.levels for t in (each.digit, each.parent))]
        starts = [self.starts, *(each.starts for each in self.levels if each.starts is not None)]
        weights = [] if self.weights is None else [self.weights]
        return sum(each.nbytes for each in (*tensors, *starts, *weights))


@dataclass(frozen=True)
class ELRec:
    """The scheme that reuses prefixes in forward and sums gradients ahead of backward.

    Attributes:
        chunk: prefixes, or indices, multiplied at once; None: as many as keep their slices in the cache.
    """

    chunk: int | None = None
    name: str = field(default="el_rec", init=False)

    def prepare(self, shape: TTShape, bags: Bags) -> ELRecPlan:
        rows, order = torch.sort(bags.rows, stable=True)
        unique, row, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
        return ELRecPlan(
            _levels(shape, rows),
            digits_of(shape, unique),
            row,
            _starts(counts),
            bag_of(bags)[order],
            None if bags.weights is None else bags.weights[order],
            bags.count,
        )

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: ELRecPlan, work: Work) -> Tensor:
        size = chunk_size(self.chunk, shape, cores[0], plan.row.numel())
        out = cores[0].new_zeros(plan.bags, shape.dim)
        chain = Chain.of(shape, size, cores[0], work)
        gathered = [torch.empty_like(each) for each in chain.prefixes]
        with work.hold(*gathered):
            walk = _Walk(cores, plan, chain, gathered, out)
            walk.descend(0, slice(0, plan.levels[0].digit.numel()), cores[0], 0)
        chain.drop()
        return out

    def backward(
        self,
        shape: TTShape,
        cores: Sequence[Tensor],
        plan: ELRecPlan,
        grad: Tensor,
        into: Sequence[Tensor],
        work: Work,
    ) -> None:
        size = chunk_size(self.chunk, shape, cores[0], plan.unique.shape[1])
        chain = Chain.of(shape, size, cores[0], work)
        sums = Backward.of(chain, into)
        for span in chunks(0, plan.unique.shape[1], size):
            rows = chain.rows[: span.stop - span.start].zero_()
            for part in chunks(plan.starts[span.start], plan.starts[span.stop], size):
                each = chain.turned[: part.stop - part.start]
                torch.index_select(grad, 0, plan.bag[part], out=each)
                if plan.weights is not None:
                    each.mul_(plan.weights[part, None])
                add_rows(rows, plan.row[part] - span.start, each)
            sums.add(cores, plan.unique[:, span], rows)
        sums.finish()


@dataclass(frozen=True, eq=False)
class _Walk:
    """Down the levels, a chunk at a time: every prefix is multiplied once and used before its buffer is."""

    cores: Sequence[Tensor]
    plan: ELRecPlan
    chain: Chain
    gathered: Sequence[Tensor]
    out: Tensor

    def descend(self, at: int, span: slice, before: Tensor, first: int) -> None:
        """Multiplies `span` of level `at`, and all below it.

        Args:
            before: [·, Q_k·r_k], products of the level before, from its place `first` on.
        """
        level = self.plan.levels[at]
        for part in chunks(span.start, span.stop, len(self.chain.rows)):
            parents = self.gathered[at][: part.stop - part.start]
            torch.index_select(before, 0, level.parent[part] - first, out=parents)
            if at + 1 == len(self.plan.levels):
                self._add(part, self.chain.finish(self.cores, level.digit[part], parents))
                continue
            starts = self.plan.levels[at + 1].starts
            products = self.chain.extend(self.cores, at + 1, level.digit[part], parents)
            self.descend(at + 1, slice(starts[part.start], starts[part.stop]), products, part.start)

    def _add(self, part: slice, rows: Tensor) -> None:
        if self.plan.weights is not None:
            rows.mul_(self.plan.weights[part, None])
        add_rows(self.out, self.plan.bag[part], rows)


def _levels(shape: TTShape, rows: Tensor) -> tuple[Level, ...]:
    """Of rows [nnz], sorted."""
    levels = []
    for k in range(1, shape.cores):  # a level of k + 1 digits
        entries = rows
        if k + 1 < shape.cores:
            entries = torch.unique_consecutive(torch.div(rows, shape.strides[k], rounding_mode="floor"))
        parent, starts = torch.div(entries, shape.row_factors[k], rounding_mode="floor"), None
        if levels:
            _, parent, counts = torch.unique_consecutive(parent, return_inverse=True, return_counts=True)
            starts = _starts(counts)
        levels.append(Level(entries.remainder(shape.row_factors[k]), parent, starts))
    return tuple(levels)


def _starts(counts: Tensor) -> np.ndarray:
    """[n + 1] of counts [n]."""
    return np.concatenate(([0], counts.cumsum(0).cpu().numpy()))
