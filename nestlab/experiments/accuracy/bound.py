"""Whether two models can rank a sample differently at all, from how far their scores are apart.

Let no score of a sample differ by more than δ between the two models, and let its target's score be more than 2δ from
every other item's under the first. Then no other item changes sides of the target: its score and the target's move
towards each other by 2δ at most. The rank is the same, whatever data or seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 256  # samples scored at a time: with 8,000 items 16 MiB a model in float64


@dataclass(frozen=True)
class Scorer:
    """A trained model as far as ranking goes: the score of an item is the dot product of state and row.

    Attributes:
        states: [n, D], one a held-out sample.
        rows: [I, D], one an item.
        left_out: samples [m] int64, ascending, and items [m]: pairs that do not stand in a ranking; None: all do.
    """

    states: Tensor
    rows: Tensor
    left_out: tuple[Tensor, Tensor] | None = None

    def scores(self, first: int, stop: int) -> Tensor:
        """[stop − first, I]; −∞ of what is left out."""
        scores = self.states[first:stop] @ self.rows.T
        if self.left_out is not None:
            samples, items = self.left_out
            begin, end = torch.searchsorted(samples, torch.tensor([first, stop])).tolist()
            scores[samples[begin:end] - first, items[begin:end]] = -torch.inf
        return scores

    def ranks(self, targets: Tensor) -> Tensor:
        """[n] int64; `targets` as for `bound`."""
        parts = [
            ranks_of(self.scores(first, first + CHUNK), targets[first : first + CHUNK])
            for first in range(0, len(targets), CHUNK)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Bound:
    """Of n samples, between two models; ranks count from 0, an item with the target's own score half (rounded up).

    Attributes:
        difference: [n], the largest difference of a score, over all items.
        gap: [n], from the target's score to the nearest other item's, under the first model.
        ranks, other_ranks: [n] int64, under the first model and under the other.
    """

    difference: Tensor
    gap: Tensor
    ranks: Tensor
    other_ranks: Tensor

    @property
    def proven(self) -> Tensor:
        """[n] bool: the rank cannot differ."""
        return (self.difference == 0) | (self.gap > 2 * self.difference)

    @property
    def ratio(self) -> Tensor:
        """[n]: the gap over twice the difference; infinite where there is none."""
        return torch.where(self.difference == 0, torch.inf, self.gap / (2 * self.difference))


def bound(one: Scorer, other: Scorer, targets: Tensor) -> Bound:
    """`targets` [n] int64: the places of the samples' targets among the items."""
    parts = [
        _bound(one.scores(first, first + CHUNK), other.scores(first, first + CHUNK), targets[first : first + CHUNK])
        for first in range(0, len(targets), CHUNK)
    ]
    nothing = [one.states.new_zeros(0)] * 2 + [torch.zeros(0, dtype=torch.int64)] * 2
    return Bound(*(torch.cat(each) for each in zip(*parts, strict=True)) if parts else nothing)


def _bound(scores: Tensor, others: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ranks, other_ranks = ranks_of(scores, targets), ranks_of(others, targets)
    difference = (others - scores).nan_to_num_(nan=0.0).abs_().amax(dim=1)  # −∞ in both: left out
    gaps = (scores - scores.gather(1, targets.unsqueeze(1))).abs_()
    gaps.scatter_(1, targets.unsqueeze(1), torch.inf)
    return difference, gaps.amin(dim=1), ranks, other_ranks


def ranks_of(scores: Tensor, targets: Tensor) -> Tensor:
    """[n] int64 of scores [n, I]: items above the target, and half of those with its very score, rounded up."""
    own = scores.gather(1, targets.unsqueeze(1))
    above, equal = (scores > own).sum(dim=1), (scores == own).sum(dim=1) - 1
    return above + (equal + 1) // 2
