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
from nestlab.embedding.tensor_train.schemes.chain import Chain, add_rows, digits_of, fitting_chunk, runs_of
from nestlab.embedding.tensor_train.schemes.chain_backward import ChainBackward
from nestlab.embedding.tensor_train.schemes.tt_rec import bag_of, chunks, starts_of
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


@dataclass(frozen=True, eq=False)
class Level:
    """Unique prefixes of k digits, in order; or, as the last level, all indices.

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
    """Indices in ascending order of row; grouped: of a row's second, first, third, … digit.

    Attributes:
        levels: unique prefixes of 2 … d − 1 digits, and then the indices themselves.
        unique: [d, n_u] int64, digits of the unique rows.
        row: [nnz] int64, the place of every index's row in `unique`.
        starts: [n_u + 1], where each one's indices begin and end, in host memory.
        bag: [nnz] int64.
        weights: [nnz] or None.
        bags: how many.
        values: grouped: [p_2 + 1] each, where second digits begin and end in the first level and in `unique`.
    """

    levels: tuple[Level, ...]
    unique: Tensor
    row: Tensor
    starts: np.ndarray
    bag: Tensor
    weights: Tensor | None
    bags: int
    values: tuple[np.ndarray, np.ndarray] | None

    @property
    def nbytes(self) -> int:
        parts = [self.unique, self.row, self.starts, self.bag, self.weights, *(self.values or ())]
        for level in self.levels:
            parts += [level.digit, level.parent, level.starts]
        return sum(each.nbytes for each in parts if each is not None)


@dataclass(frozen=True)
class ELRec:
    """The scheme that reuses prefixes in forward and sums gradients ahead of backward.

    Attributes:
        chunk: prefixes, or indices, multiplied at once; None: as many as keep their buffers in the cache.
        grouped: as in `TTRec`: what shares the slice of the second core is multiplied as one matrix.
    """

    chunk: int | None = None
    grouped: bool = False
    name: str = field(default="el_rec", init=False)

    def prepare(self, shape: TTShape, bags: Bags) -> ELRecPlan:
        grouped = self.grouped and shape.cores > 2
        keys, order = torch.sort(_exchanged(shape, bags.rows) if grouped else bags.rows, stable=True)
        keys_u, row, counts = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
        levels = _levels(shape, keys, grouped)
        unique = _exchanged_digits(shape, keys_u) if grouped else digits_of(shape, keys_u)
        values = (levels[0].digit, unique[1]) if grouped else ()
        return ELRecPlan(
            levels,
            unique,
            row,
            _starts(counts),
            bag_of(bags)[order],
            None if bags.weights is None else bags.weights[order],
            bags.count,
            tuple(starts_of(each, shape.row_factors[1]) for each in values) or None,
        )

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: ELRecPlan, work: Work) -> Tensor:
        out = cores[0].new_zeros(plan.bags, shape.dim)
        chain = self._chain(shape, cores, plan, work, plan.row.numel())
        gathered = [torch.empty_like(each) for each in chain.prefixes]
        with work.hold(*gathered):
            walk = _Walk(plan, chain, gathered, out)
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
        n_u = plan.unique.shape[1]
        chain = self._chain(shape, cores, plan, work, n_u)
        backward = ChainBackward.of(chain, into)
        for span in chunks(0, n_u, len(chain.rows)):
            rows = _summed(plan, grad, span, chain)
            runs = None if plan.values is None else runs_of(plan.values[1], span)
            backward.add(plan.unique[:, span], rows, runs)
        backward.finish()

    def _chain(self, shape: TTShape, cores: Sequence[Tensor], plan: ELRecPlan, work: Work, most: int) -> Chain:
        grouped = plan.values is not None
        size = min(self.chunk or fitting_chunk(shape, cores[0].element_size(), grouped), most)
        return Chain.of(shape, cores, size, work, grouped)


def _summed(plan: ELRecPlan, grad: Tensor, span: slice, chain: Chain) -> Tensor:
    """[n, dim], in the chain's buffer: gradients of the unique rows in `span`, of those of bags [bags, dim]."""
    rows = chain.rows[: span.stop - span.start].zero_()
    for part in chunks(int(plan.starts[span.start]), int(plan.starts[span.stop]), len(chain.rows)):
        each = chain.turned[: part.stop - part.start]
        torch.index_select(grad, 0, plan.bag[part], out=each)
        if plan.weights is not None:
            each.mul_(plan.weights[part, None])
        add_rows(rows, plan.row[part] - span.start, each)
    return rows


@dataclass(frozen=True, eq=False)
class _Walk:
    """Down the levels, a chunk at a time: every prefix is multiplied once, and used before its buffer is."""

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
                self._add(part, self.chain.finish(level.digit[part], parents))
                continue
            values = self.plan.values if at == 0 else None
            runs = None if values is None else runs_of(values[0], part)
            products = self.chain.extend(at + 1, level.digit[part], parents, runs)
            starts = self.plan.levels[at + 1].starts
            self.descend(at + 1, slice(int(starts[part.start]), int(starts[part.stop])), products, part.start)

    def _add(self, part: slice, rows: Tensor) -> None:
        if self.plan.weights is not None:
            rows.mul_(self.plan.weights[part, None])
        add_rows(self.out, self.plan.bag[part], rows)


def _levels(shape: TTShape, keys: Tensor, grouped: bool) -> tuple[Level, ...]:
    """Of keys [nnz], sorted: rows, or, grouped, rows with their first two digits exchanged."""
    levels = []
    for k in range(1, shape.cores):  # a level of k + 1 digits
        entries = keys
        if k + 1 < shape.cores:
            entries = torch.unique_consecutive(_div(keys, shape.strides[k]))
        p = shape.row_factors[0 if grouped and k == 1 else k]
        parent, digit, starts = _div(entries, p), entries.remainder(p), None
        if levels:
            _, parent, counts = torch.unique_consecutive(parent, return_inverse=True, return_counts=True)
            starts = _starts(counts)
        elif grouped:
            parent, digit = digit, parent
        levels.append(Level(digit, parent, starts))
    return tuple(levels)


def _exchanged(shape: TTShape, rows: Tensor) -> Tensor:
    """[n] rows with the first two of their digits exchanged."""
    heads, p_1, p_2 = _div(rows, shape.strides[1]), *shape.row_factors[:2]
    return (heads.remainder(p_2) * p_1 + _div(heads, p_2)) * shape.strides[1] + rows.remainder(shape.strides[1])


def _exchanged_digits(shape: TTShape, keys: Tensor) -> Tensor:
    """[d, n] digits of the rows whose first two digits were exchanged to make keys [n]."""
    p_1, p_2, *others = shape.row_factors
    digits = digits_of(TTShape((p_2, p_1, *others), shape.dim_factors, shape.ranks), keys)
    return digits[[1, 0, *range(2, shape.cores)]]


def _div(rows: Tensor, divisor: int) -> Tensor:
    return torch.div(rows, divisor, rounding_mode="floor")


def _starts(counts: Tensor) -> np.ndarray:
    """[n + 1] of counts [n]."""
    return np.concatenate(([0], counts.cumsum(0).cpu().numpy()))
