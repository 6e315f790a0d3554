"""Causal attention over jagged sequences: block after block, a chunk of queries at a time, recomputed going back.

No more than a chunk's scores exist at once, and what is kept for the way back is what came in: memory grows with
the events, not with their pairs (Dao et al., 2022, arXiv 2205.14135, have it so for the softmax). A chunk looks at the
keys up to its last event, so that of the pairs that causality forbids only those within chunks are computed.
Gradients of tables of numbers are sums in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nestlab.models.sequence.jagged import Block, Blocks, gathered, uncompiled

CHUNK = 64  # queries at a time
TIME_BUCKETS = 48  # 2^47 ms are four thousand years


@dataclass(frozen=True, eq=False)
class Window:
    """The sequences of a batch, as layers look at them.

    Attributes:
        blocks: samples of about one length.
        buckets: a block [b, L, L] uint8, of the time from the other event to this one; empty where no layer asks.
    """

    blocks: Blocks
    buckets: list[Tensor]

    @classmethod
    def of(cls, lengths: Tensor, time: Tensor | None) -> Window:
        """Of lengths [B] and the times [n] int64 of all events, in milliseconds."""
        blocks = Blocks.of(lengths)
        return cls(blocks, [] if time is None else [buckets_of(gathered(time, block)) for block in blocks.each])

    def pieces(self, heads: int) -> Iterator[tuple[Block, list[Piece]]]:
        """Every block, and what its queries are cut into."""
        for place, block in enumerate(self.blocks.each):
            pieces, longest = [], block.shape[1]
            for first in range(0, longest, CHUNK):
                rows = slice(first, min(first + CHUNK, longest))
                buckets = self.buckets[place][:, rows, : rows.stop] if self.buckets else None
                pieces.append(Piece(rows, buckets, heads))
            yield block, pieces


@dataclass(frozen=True, eq=False)
class Piece:
    """Queries of a block and the keys that they may see.

    Attributes:
        rows: places of the queries in their windows; keys lie at 0 … rows.stop − 1.
        buckets: [b, c, e] uint8, or None.
        heads: H.
    """

    rows: slice
    buckets: Tensor | None
    heads: int

    def forbid(self, weights: Tensor, value: float = 0.0) -> Tensor:
        """`weights` [..., c, e] with `value` where a key is later than its query; in place."""
        own = weights[..., self.rows]
        if value:
            later = torch.ones(own.shape[-2:], dtype=torch.bool, device=own.device).triu_(1)
            own.masked_fill_(later, value)
        else:
            own.tril_()
        return weights

    def places(self, table: Tensor) -> Tensor:
        """[c, e] of a table by distance [longest]; later keys get the number of distance 0."""
        steps = torch.arange(self.rows.stop, device=table.device)
        return table[(steps[self.rows, None] - steps).clamp(min=0)]

    def times(self, table: Tensor) -> Tensor:
        """[b, c, e] of a table by bucket."""
        return table.index_select(0, self.buckets.int().view(-1)).view(self.buckets.shape)

    def add_places(self, grad: Tensor, weights: Tensor) -> None:
        """Adds the sums of `weights` [c, e] along its diagonals to `grad` [longest]; later keys must hold zeros."""
        count, keys = weights.shape
        skewed = F.pad(weights.flip(1), (0, count)).view(-1)[:-count].view(count, -1)  # a column a distance
        grad[:keys] += skewed.sum(0, dtype=grad.dtype)[count - 1 :]

    def add_times(self, grad: Tensor, weights: Tensor) -> None:
        """Adds the sums of `weights` [b, c, e] by bucket to `grad`."""
        grad += sums_by_bucket(self.buckets, weights, len(grad))


class Pointwise:
    """Weights SiLU(Q·Kᵀ + bias); inputs Q, K and, for a bias, tables by distance and by bucket of time."""

    @staticmethod
    def forward(piece: Piece, queries: Tensor, keys: Tensor, *tables: Tensor) -> tuple[Tensor, Any]:
        """Weights [b·H, c, e], and what `backward` wants."""
        scores = queries[:, piece.rows] @ keys[:, : piece.rows.stop].mT
        if tables:
            place, time = tables
            bias = piece.times(time).add_(piece.places(place))
            scores.unflatten(0, (-1, piece.heads)).add_(bias.unsqueeze(1))
        return piece.forbid(F.silu(scores)), scores

    @staticmethod
    def backward(piece: Piece, scores: Tensor, grad: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Adds to `grads` of `inputs`, given the gradient of the weights."""
        grad = torch.ops.aten.silu_backward(piece.forbid(grad), scores)
        _add_products(piece, grad, inputs, grads)
        if len(inputs) > 2:
            by_sample = grad.unflatten(0, (-1, piece.heads)).sum(1) if piece.heads > 1 else grad
            piece.add_places(grads[2], by_sample.sum(0, dtype=grads[2].dtype))
            piece.add_times(grads[3], by_sample)


class Softmax:
    """Weights softmax(Q·Kᵀ / √d) over a query's keys; inputs Q, K."""

    @staticmethod
    def forward(piece: Piece, queries: Tensor, keys: Tensor) -> tuple[Tensor, Any]:
        scores = (queries[:, piece.rows] / math.sqrt(queries.shape[-1])) @ keys[:, : piece.rows.stop].mT
        weights = torch.softmax(piece.forbid(scores, -torch.inf), dim=-1)
        return weights, weights

    @staticmethod
    def backward(
        piece: Piece, weights: Tensor, grad: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> None:
        grad = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
        _add_products(piece, grad / math.sqrt(inputs[0].shape[-1]), inputs, grads)


class ByPlace:
    """Weights of a table by distance, alike for all samples; its input."""

    @staticmethod
    def forward(piece: Piece, table: Tensor) -> tuple[Tensor, Any]:
        return piece.forbid(piece.places(table)).unsqueeze(0), None

    @staticmethod
    def backward(piece: Piece, _: None, grad: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        piece.add_places(grads[0], piece.forbid(grad.sum(0, dtype=grads[0].dtype)))


class ByTime:
    """Weights of a table by bucket of time; its input."""

    @staticmethod
    def forward(piece: Piece, table: Tensor) -> tuple[Tensor, Any]:
        return piece.forbid(piece.times(table)), None

    @staticmethod
    def backward(piece: Piece, _: None, grad: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        piece.add_times(grads[0], piece.forbid(grad))


Kind = type[Pointwise] | type[Softmax] | type[ByPlace] | type[ByTime]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kind: Kind, window: Window, heads: int, *inputs: Tensor) -> Tensor:
        ctx.kind, ctx.window, ctx.heads = kind, window, heads
        ctx.save_for_backward(*inputs)
        found = []
        for block, pieces in window.pieces(heads):
            values, *others = (_split(each, block, heads) for each in inputs)
            attended = torch.empty_like(values)
            for piece in pieces:
                seen = values[:, : piece.rows.stop]
                attended[:, piece.rows] = _weights(kind, piece, others, seen)[0] @ seen
            found.append(_merged(attended, heads))
        return window.blocks.joined(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks, inputs = ctx.window.blocks, ctx.saved_tensors
        found = [_block_backward(ctx, block, pieces, grad) for block, pieces in ctx.window.pieces(ctx.heads)]
        grads = []
        for given, parts in zip(inputs, zip(*found, strict=True), strict=True):
            grads.append(sum(parts[1:], parts[0]) if given.dim() == 1 else blocks.joined(parts))
        return None, None, None, *grads


def _block_backward(ctx, block: Block, pieces: Sequence[Piece], grad: Tensor) -> list[Tensor]:
    """The gradients of a block's inputs: of events [b, L, H·d], of tables as they are."""
    inputs = [_split(each, block, ctx.heads) for each in ctx.saved_tensors]
    grad = _split(grad, block, ctx.heads)
    if block.padded:
        grad.unflatten(0, (-1, ctx.heads)).mul_(block.events[:, None, :, None])
    grads = [torch.zeros_like(each) for each in inputs]
    for piece in pieces:
        _piece_backward(ctx.kind, piece, grad[:, piece.rows], inputs, grads)
    return [_merged(each, ctx.heads) for each in grads]


def _piece_backward(kind: Kind, piece: Piece, grad: Tensor, inputs: list[Tensor], grads: list[Tensor]) -> None:
    (values, *others), seen = inputs, slice(piece.rows.stop)
    weights, kept = _weights(kind, piece, others, values)
    grads[0][:, seen].baddbmm_(weights.mT, grad)
    kind.backward(piece, kept, grad @ values[:, seen].mT, others, grads[1:])


def attend(kind: Kind, window: Window, values: Tensor, *inputs: Tensor, heads: int = 1) -> Tensor:
    """[n, H·d]: of each event the weighted sum of the values of its sample up to it.

    Args:
        kind: gives the weights from `inputs`: of events [n, H·d], or tables of numbers [.].
        values: [n, H·d].
    """
    return uncompiled(_attend)(kind, window, heads, values, *inputs)


def _attend(kind: Kind, window: Window, heads: int, values: Tensor, *inputs: Tensor) -> Tensor:
    return _Attention.apply(kind, window, heads, values, *inputs) if window.blocks.each else values


def pairs_of(lengths: Tensor) -> int:
    """How many pairs of query and key are computed for sequences of these lengths, without padding."""
    whole, rest = lengths.long() // CHUNK, lengths.long() % CHUNK
    return int((CHUNK * CHUNK * whole * (whole + 1) // 2 + rest * lengths).sum())


def buckets_of(time: Tensor) -> Tensor:
    """[b, L, L] uint8 of times [b, L]: 0 for no time between (or an event ahead), k for 2^(k−1) ms to below 2^k.

    k is the exponent of the gap as a float64, read from its bits: a logarithm costs thirty times as much.
    """
    gaps = (time[:, :, None] - time[:, None, :]).clamp_(min=0).double()
    return gaps.view(torch.int64).bitwise_right_shift_(52).sub_(1022).clamp_(0, TIME_BUCKETS - 1).byte()


def sums_by_bucket(buckets: Tensor, values: Tensor, count: int) -> Tensor:
    """[count]: sums of `values` by `buckets` of one shape, in float32 at least.

    In a fixed order, which takes a pass a bucket where atomics are the other way.
    """
    wide = values if values.dtype is torch.float64 else values.float()
    if values.device.type == "cpu":
        return torch.bincount(buckets.reshape(-1), wide.reshape(-1), count)
    return sums_in_passes(buckets, wide, count)


def sums_in_passes(buckets: Tensor, values: Tensor, count: int) -> Tensor:
    """[count]: as `sums_by_bucket`, without atomics."""
    return torch.stack([(values * (buckets == bucket)).sum() for bucket in range(count)])


def _weights(kind: Kind, piece: Piece, inputs: Sequence[Tensor], like: Tensor) -> tuple[Tensor, Any]:
    """[b·H, c, e] in the dtype of the values, which under autocast is not that of tables; and what `backward` wants."""
    weights, kept = kind.forward(piece, *inputs)
    return weights.to(like.dtype).expand(len(like), -1, -1), kept


def _add_products(piece: Piece, grad: Tensor, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Of the scores Q·Kᵀ to Q and K."""
    rows, seen = piece.rows, slice(piece.rows.stop)
    grads[0][:, rows].baddbmm_(grad, inputs[1][:, seen])
    grads[1][:, seen].baddbmm_(grad.mT, inputs[0][:, rows])


def _split(values: Tensor, block: Block, heads: int) -> Tensor:
    """[b·H, L, d] of events [n, H·d]; a table as it is."""
    if values.dim() == 1:
        return values
    found = gathered(values, block)
    return found if heads == 1 else found.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)


def _merged(values: Tensor, heads: int) -> Tensor:
    """[b, L, H·d] of [b·H, L, d]; a table as it is."""
    if values.dim() == 1 or heads == 1:
        return values
    return values.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
