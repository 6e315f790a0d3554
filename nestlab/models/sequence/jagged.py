"""Jagged sequences [n, D] with lengths [B], and blocks of samples of about one length: dense work without much padding.

What a sample comes to does not depend on the samples beside it (up to the rounding of a product of another shape):
padding stands behind a sample's events, where no event looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestlab.batch import Batch

WASTE = 1.1  # a block's longest sample over its shortest, at most, where the block is not small
SMALL = 1 << 14  # pairs that cost less than the calls that a block takes, however much of them is padding
SHORTEST = 1e-12  # a row's length counts as this at least
PAIRS = 1 << 22  # events of a block times its longest sample, at most: what one head's scores hold


@dataclass(frozen=True, eq=False)
class Block:
    """Samples of about one length.

    Attributes:
        samples: [b] int64, their numbers in the batch.
        index: [b, L] int64, where their events lie; behind a sample's end its last event again.
        events: [b, L] bool, what is no padding.
        places: [m] int64, where its m events lie in the batch, sample after sample.
        own: [m] int64, where they lie among the block's b·L places.
    """

    samples: Tensor
    index: Tensor
    events: Tensor
    places: Tensor
    own: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.index.shape[0], self.index.shape[1]

    @property
    def padded(self) -> bool:
        """Whether its samples differ in length."""
        return len(self.places) < self.index.numel()


def blocks_of(lengths: Tensor) -> list[Block]:
    """Every sample with an event, shortest first; the lengths [B] are needed on the host.

    Padding is at most a tenth of a block's events, or one event a sample; more in blocks of few pairs alone, where a
    block of its own would cost more.
    """
    starts = torch.cumsum(lengths, 0) - lengths
    order = torch.argsort(lengths, stable=True)
    found, sorted_lengths = [], lengths[order].tolist()
    for first, end in _spans(sorted_lengths):
        samples, longest = order[first:end], sorted_lengths[end - 1]
        places = torch.arange(longest, device=lengths.device)
        own = lengths[samples, None]
        index, events = starts[samples, None] + torch.minimum(places, own - 1), places < own
        kept = torch.nonzero(events.view(-1)).view(-1)
        found.append(Block(samples, index, events, index.view(-1).index_select(0, kept), kept))
    return found


def _spans(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of ascending lengths: first and end of each block."""
    first = next((place for place, length in enumerate(lengths) if length), len(lengths))
    for place in range(first + 1, len(lengths) + 1):
        done = place == len(lengths)
        longest = lengths[-1] if done else lengths[place]
        pairs = (place + 1 - first) * longest * longest
        wide = not done and longest > max(WASTE * lengths[first], lengths[first] + 1) and pairs > SMALL
        if done or wide or pairs > PAIRS:
            yield first, place
            first = place


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a batch.

    Attributes:
        each: shortest samples first; none where there is no event.
        order: [n] int64, where each event of the batch lies when the events of all blocks lie end to end.
    """

    each: tuple[Block, ...]
    order: Tensor

    @classmethod
    def of(cls, lengths: Tensor) -> Blocks:
        """Of samples of these lengths [B], which are needed on the host."""
        each = tuple(blocks_of(lengths))
        places = torch.cat([block.places for block in each]) if each else lengths.new_zeros(0)
        order = torch.empty_like(places)
        order[places] = torch.arange(len(places), device=places.device)
        return cls(each, order)

    @cached_property
    def samples(self) -> Tensor:
        """int64: the numbers of the samples, block after block."""
        return torch.cat([block.samples for block in self.each])

    def of_samples(self, values: Tensor) -> tuple[Tensor, ...]:
        """A block's [b, …], of values [B, …].

        Selected together, then cut: the gradient of a selection is as large as what it was selected from, and one a
        block would be most of a step.
        """
        return values.index_select(0, self.samples).split([len(block.samples) for block in self.each])

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """[n, D] in the batch's order, of each block's [b, L, D]: padding left out."""
        rows = [value.flatten(0, 1).index_select(0, block.own) for value, block in zip(values, self.each, strict=True)]
        return torch.cat(rows).index_select(0, self.order)

    def padded(self, values: Tensor) -> tuple[Tensor, ...]:
        """A block [b, L, D], of values [n, D]; gradients of padding must be zeros, and are left out."""
        return _Padded.apply(values, self) if self.each else ()


class _Padded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, blocks: Blocks) -> tuple[Tensor, ...]:
        ctx.blocks = blocks
        return tuple(gathered(values, block) for block in blocks.each)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.joined(grads), None


def gathered(values: Tensor, block: Block) -> Tensor:
    """[b, L, …] of values [n, …]; selecting rows costs a twentieth of indexing."""
    return values.index_select(0, block.index.view(-1)).unflatten(0, block.shape)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows [n, D] of length 1; of zeros, zeros. As `functional.normalize`, whose gradient takes twice the passes."""
    return _UnitRows.apply(rows)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        scale = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min_(SHORTEST).reciprocal_()
        unit = rows * scale
        ctx.save_for_backward(unit, scale)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        unit, scale = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, unit).unsqueeze(-1)
        return torch.addcmul(grad, unit, along, value=-1).mul_(scale)


def places_within(lengths: Tensor) -> Tensor:
    """[n] int64: each event's place in its sample, from 0."""
    ends = torch.cumsum(lengths, 0)
    total = int(ends[-1]) if len(ends) else 0
    starts = torch.repeat_interleave(ends - lengths, lengths, output_size=total)
    return torch.arange(total, device=lengths.device) - starts


def sums_of_runs(rows: Tensor, lengths: Tensor) -> Tensor:
    """[B, D]: of rows [n, D] the sum of each sample's; in their order, which atomics on a GPU would not keep."""
    if rows.device.type != "cpu":
        return torch.segment_reduce(rows, "sum", lengths=lengths, unsafe=True, initial=0.0)
    numbers = torch.arange(len(lengths), device=lengths.device)
    sample = torch.repeat_interleave(numbers, lengths, output_size=len(rows))
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, sample, rows)


def uncompiled(function: Callable) -> Callable:
    """`function`, left as it is by a torch.compile around it, which would make a graph for each set of lengths."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def padding(lengths: Tensor) -> float:
    """The share of what is computed that is padding."""
    blocks = blocks_of(lengths)
    computed = sum(block.index.numel() for block in blocks)
    return 1 - int(lengths.sum()) / computed if computed else 0.0


def batch_values(batch: Batch, feature: str) -> Tensor:
    """[n] int64: the raw values of a feature, in the order of the samples.

    Raises:
        ValueError: the batch has no such feature.
    """
    if feature not in batch.features:
        raise ValueError(f"batch: no feature '{feature}'; there are {', '.join(batch.features)}")
    place = batch.features.index(feature)
    sizes = batch.feature_lengths().sum(dim=1)
    first = int(sizes[:place].sum())
    return batch.ids[first : first + int(sizes[place])]
