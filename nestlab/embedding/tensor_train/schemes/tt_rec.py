"""TT-Rec (Yin et al., 2021): every index multiplies its own slices; nothing is reused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes.chain import Chain, add_rows, digits_of, fitting_chunk, runs_of
from nestlab.embedding.tensor_train.schemes.chain_backward import ChainBackward
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


@dataclass(frozen=True, eq=False)
class TTRecPlan:
    """Indices in the order they came, or, grouped, in that of their second digit.

    Attributes:
        digits: [d, nnz] int64.
        bag: [nnz] int64, the bag of every index.
        weights: [nnz] or None.
        bags: how many.
        starts: grouped: [p_2 + 1], where each second digit begins and ends, in host memory; otherwise None.
    """

    digits: Tensor
    bag: Tensor
    weights: Tensor | None
    bags: int
    starts: np.ndarray | None

    @property
    def nbytes(self) -> int:
        parts = (self.digits, self.bag, self.weights, self.starts)
        return sum(each.nbytes for each in parts if each is not None)


@dataclass(frozen=True)
class TTRec:
    """The scheme without reuse.

    Attributes:
        chunk: indices multiplied at once; None: as many as keep their buffers in the cache.
        grouped: indices that share the slice of the second core, which is the largest, are multiplied as one matrix: as
            many operations, but fewer and larger products (from 3 cores on). TT-Rec itself has a batched product of one
            matrix an index.
    """

    chunk: int | None = None
    grouped: bool = False
    name: str = field(default="tt_rec", init=False)

    def prepare(self, shape: TTShape, bags: Bags) -> TTRecPlan:
        digits, bag, weights, starts = digits_of(shape, bags.rows), bag_of(bags), bags.weights, None
        if self.grouped and shape.cores > 2:
            order = torch.argsort(digits[1], stable=True)
            digits, bag, weights = digits[:, order], bag[order], None if weights is None else weights[order]
            starts = starts_of(digits[1], shape.row_factors[1])
        return TTRecPlan(digits, bag, weights, bags.count, starts)

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: TTRecPlan, work: Work) -> Tensor:
        out = cores[0].new_zeros(plan.bags, shape.dim)
        chain, spans = self._chunks(shape, cores, plan, work)
        for span, runs in spans:
            digits = plan.digits[:, span]
            rows = chain.finish(digits[-1], chain.multiply_prefixes(digits, runs))
            if plan.weights is not None:
                rows.mul_(plan.weights[span, None])
            add_rows(out, plan.bag[span], rows)
        chain.drop()
        return out

    def backward(
        self,
        shape: TTShape,
        cores: Sequence[Tensor],
        plan: TTRecPlan,
        grad: Tensor,
        into: Sequence[Tensor],
        work: Work,
    ) -> None:
        chain, spans = self._chunks(shape, cores, plan, work)
        backward = ChainBackward.of(chain, into)
        for span, runs in spans:
            rows = chain.rows[: span.stop - span.start]
            torch.index_select(grad, 0, plan.bag[span], out=rows)
            if plan.weights is not None:
                rows.mul_(plan.weights[span, None])
            backward.add(plan.digits[:, span], rows, runs)
        backward.finish()

    def _chunks(self, shape: TTShape, cores: Sequence[Tensor], plan: TTRecPlan, work: Work):
        """The chain, and the span of every chunk with its runs."""
        grouped, nnz = plan.starts is not None, plan.bag.numel()
        size = min(self.chunk or fitting_chunk(shape, cores[0].element_size(), grouped), nnz)
        spans = ((span, runs_of(plan.starts, span) if grouped else None) for span in chunks(0, nnz, size))
        return Chain.of(shape, cores, size, work, grouped), spans


def bag_of(bags: Bags) -> Tensor:
    """[nnz] int64: the bag of every index."""
    each = torch.arange(bags.count, device=bags.rows.device)
    return torch.repeat_interleave(each, bags.offsets.diff(), output_size=bags.nnz)


def starts_of(digit: Tensor, count: int) -> np.ndarray:
    """[count + 1]: where each of 0 … count − 1 begins and ends in digit [n], ascending; in host memory."""
    values = torch.arange(count + 1, device=digit.device)
    return torch.searchsorted(digit.contiguous(), values).cpu().numpy()


def chunks(first: int, end: int, size: int) -> Iterator[slice]:
    """[first, end) in spans of at most `size`."""
    return (slice(start, min(start + size, end)) for start in range(first, end, max(size, 1)))
