"""TT-Rec (Yin et al., 2021): every index multiplies its own slices; nothing is reused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes.chain import Backward, Chain, add_rows, digits_of, fitting_chunk
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


@dataclass(frozen=True, eq=False)
class TTRecPlan:
    """Attributes:
    digits: [d, nnz] int64.
    bag: [nnz] int64, the bag of every index.
    weights: [nnz] or None.
    bags: how many.
    """

    digits: Tensor
    bag: Tensor
    weights: Tensor | None
    bags: int

    @property
    def nbytes(self) -> int:
        return self.digits.nbytes + self.bag.nbytes + (0 if self.weights is None else self.weights.nbytes)


@dataclass(frozen=True)
class TTRec:
    """The scheme without reuse.

    Attributes:
        chunk: indices multiplied at once; None: as many as keep their slices in the cache.
    """

    chunk: int | None = None
    name: str = field(default="tt_rec", init=False)

    def prepare(self, shape: TTShape, bags: Bags) -> TTRecPlan:
        return TTRecPlan(digits_of(shape, bags.rows), bag_of(bags), bags.weights, bags.count)

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: TTRecPlan, work: Work) -> Tensor:
        out = cores[0].new_zeros(plan.bags, shape.dim)
        size = chunk_size(self.chunk, shape, cores[0], plan.bag.numel())
        chain = Chain.of(shape, size, cores[0], work)
        for span in chunks(0, plan.bag.numel(), size):
            rows = chain.products(cores, plan.digits[:, span])
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
        size = chunk_size(self.chunk, shape, cores[0], plan.bag.numel())
        chain = Chain.of(shape, size, cores[0], work)
        sums = Backward.of(chain, into)
        for span in chunks(0, plan.bag.numel(), size):
            rows = chain.rows[: span.stop - span.start]
            torch.index_select(grad, 0, plan.bag[span], out=rows)
            if plan.weights is not None:
                rows.mul_(plan.weights[span, None])
            sums.add(cores, plan.digits[:, span], rows)
        sums.finish()


def bag_of(bags: Bags) -> Tensor:
    """[nnz] int64: the bag of every index."""
    each = torch.arange(bags.count, device=bags.rows.device)
    return torch.repeat_interleave(each, bags.offsets.diff(), output_size=bags.nnz)


def chunk_size(chunk: int | None, shape: TTShape, core: Tensor, most: int) -> int:
    """Rows at once, at most `most`."""
    return min(chunk or fitting_chunk(shape, core.element_size()), most)


def chunks(first: int, end: int, size: int) -> Iterator[slice]:
    """[first, end) in spans of at most `size`."""
    return (slice(start, min(start + size, end)) for start in range(first, end, max(size, 1)))
