"""Jagged sequences [n, D] with lengths [B], and blocks of samples of about one length: dense work without much padding.

What a sample comes to does not depend on the samples beside it (up to the rounding of a product of another shape):
padding stands behind a sample's events, where no event looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nestlab.batch import Batch

WASTE = 1.1  # a block's longest sample over its shortest, at most
PAIRS = 1 << 22  # events of a block times its longest sample, at most: what one head's scores hold


@dataclass(frozen=True, eq=False)
class Block:
    """Samples of about one length.

    Attributes:
        samples: [b] int64, their numbers in the batch.
        index: [b, L] int64, where their events lie; behind a sample's end its last event again.
        events: [b, L] bool, what is no padding.
    """

    samples: Tensor
    index: Tensor
    events: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.index.shape[0], self.index.shape[1]


def blocks_of(lengths: Tensor) -> list[Block]:
    """Every sample with an event, shortest first; the lengths [B] are needed on the host.

    Padding is at most a tenth of a block, or one event a sample.
    """
    starts = torch.cumsum(lengths, 0) - lengths
    order = torch.argsort(lengths, stable=True)
    found, sorted_lengths = [], lengths[order].tolist()
    for first, end in _spans(sorted_lengths):
        samples, longest = order[first:end], sorted_lengths[end - 1]
        places = torch.arange(longest, device=lengths.device)
        own = lengths[samples, None]
        index = starts[samples, None] + torch.minimum(places, own - 1)
        found.append(Block(samples, index, places < own))
    return found


def _spans(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of ascending lengths: first and end of each block."""
    first = next((place for place, length in enumerate(lengths) if length), len(lengths))
    for place in range(first + 1, len(lengths) + 1):
        done = place == len(lengths)
        longest = lengths[-1] if done else lengths[place]
        wide = not done and longest > max(WASTE * lengths[first], lengths[first] + 1)
        if done or wide or (place + 1 - first) * longest * longest > PAIRS:
            yield first, place
            first = place


def joined(values: Sequence[Tensor], blocks: Sequence[Block]) -> Tensor:
    """[n, …] in the batch's order, of each block's [b, L, …]: padding left out."""
    places = torch.cat([block.index[block.events] for block in blocks])
    rows = torch.cat([value[block.events] for value, block in zip(values, blocks, strict=True)])
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places), device=places.device)
    return rows.index_select(0, back)


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
