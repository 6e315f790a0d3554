"""Cores as data-parallel replicas, EL-Rec's way: every rank has those of all tables, their gradients are summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.exchange.transport import Channel, Transport


def reduce_core_grads(
    transport: Transport, grads: Sequence[Tensor], touched: Sequence[Tensor], channel: Channel = Channel.DENSE
) -> tuple[list[Tensor], list[Tensor]]:
    """The sum over all ranks of core gradients, and which slices any rank touched: one flat all-reduce.

    The same bits on every rank, so that cores that were equal stay equal. Marks travel as numbers, behind the
    gradients: a slice is touched where their sum is not 0, also where its gradient happens to be. On one rank the
    arguments come back as they are; otherwise gradients are views of one buffer.

    Args:
        grads: [p_k, width_k] of one dtype, core after core of all tables; shapes and order are those of every rank.
        touched: [p_k] bool of each, in host memory.

    Raises:
        ValueError: dtypes differ, or marks and gradients do not belong together.
        RankFailed: see `Transport`.
    """
    if [mark.shape for mark in touched] != [grad.shape[:1] for grad in grads]:
        raise ValueError(f"core gradients: {len(touched)} marks for {len(grads)} gradients; give one a slice of each")
    if len({grad.dtype for grad in grads}) > 1:
        raise ValueError(f"core gradients of several dtypes, {', '.join(str(grad.dtype) for grad in grads)}; give one")
    if transport.mesh.world_size == 1 or not grads:
        return list(grads), list(touched)
    like = grads[0]
    marks = torch.cat(list(touched)).to(device=like.device, dtype=like.dtype)
    flat = torch.cat([*(grad.reshape(-1) for grad in grads), marks])
    total = transport.all_reduce(channel, flat)
    *sums, marks = total.split([*(grad.numel() for grad in grads), marks.numel()])
    union = (marks != 0).to(touched[0].device)
    shaped = [part.view(grad.shape) for part, grad in zip(sums, grads, strict=True)]
    return shaped, list(union.split([mark.numel() for mark in touched]))
