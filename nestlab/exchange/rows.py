"""Rows to those who need them, gradients back to those who own them, and their sum there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestlab.exchange import row_kernels
from nestlab.exchange.codec import Codec
from nestlab.exchange.routed import PartPlan
from nestlab.exchange.transport import Channel, Mesh, Transport


class Leaving(NamedTuple):
    """Bytes of one micro-batch and group that leave this rank: rows on the way there, gradients on the way back."""

    rows: int
    grads: int


def exchange_rows(transport: Transport, rows: Tensor, plan: PartPlan, codec: Codec | None = None) -> Tensor:
    """Rows [n_out, dim], in the order of the plan's places, to their requesters; what comes is [n_in, dim].

    With a codec every row goes through it, those that stay on this rank too: a row then reads alike on every rank. On
    one shard without a codec it is the tensor itself. No gradient flows through: `exchange_grads` takes it back.

    Raises:
        RankFailed: see `Transport`.
    """
    return _exchange(transport, rows, plan.send_counts, plan.counts, codec)


def exchange_grads(transport: Transport, grads: Tensor, plan: PartPlan, codec: Codec | None = None) -> Tensor:
    """Gradients [n_in, dim] of the rows that came, back to their owners; what comes is [n_out, dim].

    Otherwise as `exchange_rows`.
    """
    return _exchange(transport, grads, plan.counts, plan.send_counts, codec)


def _exchange(transport: Transport, rows: Tensor, send_counts, counts, codec: Codec | None) -> Tensor:
    if rows.shape[0] != sum(send_counts):
        raise ValueError(f"row exchange: {rows.shape[0]} rows for a plan of {sum(send_counts)}")
    sent = rows if codec is None else codec.encode(rows)
    if transport.mesh.shards > 1:
        sent = transport.all_to_all(Channel.ROWS, sent, send_counts, counts)
    return sent if codec is None else codec.decode(sent, rows.shape[1], rows.dtype)


def accumulate(acc: Tensor, plan: PartPlan, grads: Tensor) -> None:
    """Adds the gradients [n_out, dim] of one micro-batch to acc [U, dim], row by row of the owner's keys, in place.

    The order of a key's sum is (micro-batch, requester), where the caller goes through micro-batches in order: equal
    bits in every run. On an accelerator a micro-batch is first summed by key, over a stable sort, and then added.
    """
    grads = grads.detach()
    if grads.shape[0] != (acc.shape[0] if plan.places is None else plan.places.size) or grads.dtype != acc.dtype:
        raise ValueError(f"accumulate: {grads.dtype} gradients of shape {list(grads.shape)} for a plan of other rows")
    if plan.places is None:
        acc += grads
    elif acc.device.type == "cpu":
        row_kernels.add_rows(acc.numpy(), plan.places, grads.contiguous().numpy())
    else:
        acc += sum_by_key(grads, plan.places, acc.shape[0])


def sum_by_key(grads: Tensor, places: np.ndarray, keys: int) -> Tensor:
    """[keys, dim]: the gradients [n, dim] of each place summed in their order, without atomics; zeros elsewhere."""
    order = torch.from_numpy(np.argsort(places, kind="stable")).to(grads.device)
    lengths = torch.from_numpy(np.bincount(places, minlength=keys)).to(grads.device)
    sorted_grads = grads.index_select(0, order)
    return torch.segment_reduce(sorted_grads, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)


def bytes_leaving(plan: PartPlan, width: int, mesh: Mesh) -> Leaving:
    """Bytes that leave this rank at `width` bytes a row, in each direction; what stays on its own shard does not."""
    own = mesh.shard
    rows, grads = sum(plan.send_counts) - plan.send_counts[own], sum(plan.counts) - plan.counts[own]
    return Leaving(rows * width, grads * width)
