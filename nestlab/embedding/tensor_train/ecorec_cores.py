"""EcoRec by kernels for tables of two, three or four cores: the kernels take three.

Of two cores the first of three is the number 1. Of four the products of the first two, each unique prefix of two digits
once, are the first core of three; its gradient is the gradient of these products, and goes on by torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.ecorec_numba import Job, Threads
from nestlab.embedding.tensor_train.ecorec_plan import Plan
from nestlab.embedding.tensor_train.ecorec_torch import Part
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


def forward(shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work, slices: int, threads: Threads) -> Tensor:
    """[bags, dim]; see `Scheme.forward`."""
    first = _first(shape, cores, plan, work)
    with work.hold(*first):
        return Job.of(three(shape, plan), [*first, *cores[-3 + len(first) :]], plan, work, threads).forward(slices)


def backward(
    shape: TTShape,
    cores: Sequence[Tensor],
    plan: Plan,
    grad: Tensor,
    into: Sequence[Tensor],
    work: Work,
    threads: Threads,
) -> None:
    """See `Scheme.backward`."""
    first = _first(shape, cores, plan, work)
    own = [torch.zeros_like(each) for each in first]
    with work.hold(*first, *own):
        rest = -3 + len(first)
        job = Job.of(three(shape, plan), [*first, *cores[rest:]], plan, work, threads)
        job.backward(grad, [*own, *into[rest:]])
        if shape.cores == 4 and plan.bags.nnz:
            _whole(shape, cores, plan, work).differentiate_level(0, [], own[0], None, into)


def three(shape: TTShape, plan: Plan) -> TTShape:
    """The shape of three cores that stand for those there are."""
    p, q, r = shape.row_factors, shape.dim_factors, shape.ranks
    if shape.cores == 2:
        return TTShape((1, *p), (1, *q), (1, *r))
    if shape.cores == 4:
        return TTShape((max(1, len(plan.levels[0])), *p[2:]), (q[0] * q[1], *q[2:]), r[1:])
    return shape


def _first(shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work) -> list[Tensor]:
    """What stands for the first core of three, if it is not one of them: [n, q·r]."""
    if shape.cores == 2:
        return [cores[0].new_ones(1, 1)]
    if shape.cores == 4:
        if not plan.bags.nnz:
            return [cores[0].new_zeros(1, shape.dim_factors[0] * shape.dim_factors[1] * shape.ranks[1])]
        return [_whole(shape, cores, plan, work).products(1)[0].flatten(1)]
    return []


def _whole(shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work) -> Part:
    (span,) = plan.cut(1, ())
    return Part(shape, cores, plan, work, span)
