"""A look-up as one autograd node: gradients for the cores, never for the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


def tt_embed(cores: Sequence[Tensor], shape: TTShape, bags: Bags, scheme: Scheme, work: Work | None = None) -> Tensor:
    """[bags, dim], each bag's weighted sum of rows; differentiable once, by the cores [p_k, width_k].

    The weights of the bags are taken as constants. Forward and backward both count in `work`.
    """
    return _Embed.apply(shape, scheme.prepare(shape, bags), scheme, Work() if work is None else work, *cores)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shape: TTShape, plan: Any, scheme: Scheme, work: Work, *cores: Tensor) -> Tensor:
        ctx.rest = (shape, plan, scheme, work)
        ctx.save_for_backward(*cores)
        return scheme.forward(shape, [core.detach() for core in cores], plan, work)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        shape, plan, scheme, work = ctx.rest
        cores = ctx.saved_tensors
        into = [core.new_zeros(core.shape) for core in cores]
        scheme.backward(shape, cores, plan, grad, into, work)
        return (None, None, None, None, *into)
