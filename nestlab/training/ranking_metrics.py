"""Quality of a ranking: where the item that came next stands among all items, or among a sample of them.

Scores are exact. States and rows are brought to unit length in float64 and rounded to multiples of 2⁻²⁶; a product of
two such numbers is a multiple of 2⁻⁵², and no partial sum of a dot product reaches 2 (Cauchy and Schwarz), so that
float64 holds all of them without rounding. A rank therefore depends on no chunk, thread, rank, library or device, and
items that have the same row tie to the bit. Rounding to the grid moves a score no more than a float32 product would.

**Ties**: of the items that have the target's own score, half stand before it, rounded up. It is the mean place over all
orders of those items, and a model that gives every item one score is not rewarded for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nestlab.errors import UserError
from nestlab.training.item_pairs import Pairs, Seen, places_of, seen_pairs

SCORES = 1 << 22  # computed at a time: 32 MiB in float64
CHUNK = 8192  # items at a time
_GRID = float(1 << 26)
_SHORTEST = 1e-12  # below this length a vector is not stretched: torch.nn.functional.normalize has the same

Array = np.ndarray | Tensor


def ranks_of_targets(
    states: Array, item_rows: Array, items: Array, targets: Array, seen: Seen | None = None, chunk: int = CHUNK
) -> np.ndarray:
    """[n] int64: how many items stand before each sample's target; 0 is best. See the module for score and tie rule.

    Memory beside the arguments: 32 MiB of scores, and a copy in float64 of the states and of one chunk of rows.

    Args:
        states: [n, D], of any length but zero (a zero state gives every item the score 0).
        item_rows: [I, D], likewise.
        items: [I] int64, ascending: whose rows they are.
        targets: [n] int64, each one of `items`.
        seen: items that do not stand in the ranking of a sample, unless they are its target.
        chunk: items scored at a time; no figure depends on it.

    Raises:
        UserError: a target is none of the items, items are not ascending, or a number is not finite.
    """
    items, targets = as_ids(items), as_ids(targets)
    rows = torch.as_tensor(item_rows)
    places = places_of(items, targets)
    ranker = Ranker(states, rows[torch.from_numpy(places).to(rows.device)], len(items), chunk)
    ranker.leave_out(seen_pairs(seen, items, places))
    for first in range(0, len(items), chunk):
        ranker.add(first, rows[first : first + chunk])
    return ranker.ranks()


class Ranker:
    """Ranks of the targets of n samples while the rows of the items come, chunk by chunk."""

    def __init__(self, states: Array, target_rows: Tensor, items: int, chunk: int = CHUNK) -> None:
        """
        Args:
            states, target_rows: [n, D].
            items: how many will come in all.
            chunk: of them at a time, at most.

        Raises:
            UserError: a number is not finite.
        """
        if chunk < 1:
            raise UserError(f"ranking: chunk={chunk}: give at least 1 item")
        self._items, self.block = items, max(SCORES // min(chunk, max(items, 1)), 1)
        self._device = target_rows.device
        self._states = on_grid(torch.as_tensor(states).to(self._device), "the state of a sample")
        self._own = (self._states * on_grid(target_rows, "the row of an item")).sum(dim=1, keepdim=True)
        n = len(self._states)
        self._above, self._equal = (np.zeros(n, np.int64) for _ in range(2))
        self._sampled_above, self._sampled_equal = (np.zeros(n, np.int64) for _ in range(2))
        self._left_out, self._candidates = Pairs.none(), Pairs.none()

    def leave_out(self, pairs: Pairs) -> None:
        """Items that do not stand in a sample's full ranking; the target is not among them."""
        self._left_out = pairs.by_block(self.block, self._items)

    def sample(self, pairs: Pairs) -> None:
        """The items of each sample's sampled ranking, each once, without the target."""
        self._candidates = pairs.by_block(self.block, self._items)

    def add(self, first: int, rows: Tensor) -> None:
        """The rows [c, D] of items first … first + c − 1.

        Raises:
            UserError: a number is not finite.
        """
        columns = on_grid(rows, "the row of an item").T
        for block, start in enumerate(range(0, len(self._states), self.block)):
            stop = min(start + self.block, len(self._states))
            own = self._own[start:stop]
            scores = self._states[start:stop] @ columns
            self._count_sampled(block, start, scores, own, first)
            who, where = self._left_out.within(block, first, first + len(rows))
            scores[who.to(self._device), where.to(self._device)] = -torch.inf
            self._above[start:stop] += (scores > own).sum(dim=1).cpu().numpy()
            self._equal[start:stop] += (scores == own).sum(dim=1).cpu().numpy()

    def ranks(self) -> np.ndarray:
        """[n] int64 among all items that are not left out, once all have come."""
        return self._above + half_up(self._equal - 1)  # the target ties with itself

    def sampled_ranks(self) -> np.ndarray:
        """[n] int64 among the items of `sample` alone."""
        return self._sampled_above + half_up(self._sampled_equal)

    def _count_sampled(self, block: int, start: int, scores: Tensor, own: Tensor, first: int) -> None:
        who, where = self._candidates.within(block, first, first + scores.shape[1])
        if not len(who):
            return
        there = who.to(self._device)
        theirs, mine = scores[there, where.to(self._device)], own[there, 0]
        for into, found in ((self._sampled_above, theirs > mine), (self._sampled_equal, theirs == mine)):
            counted = np.bincount(who.numpy()[found.cpu().numpy()], minlength=len(own))
            into[start : start + len(own)] += counted


def popularity_ranks(popularity: Array, items: Array, targets: Array, seen: Seen | None = None) -> np.ndarray:
    """[n] int64: the targets' ranks where every sample's items are ordered by how often each was met in training.

    The baseline that any model has to pass; arguments and tie rule as for `ranks_of_targets`.

    Args:
        popularity: [I] counts, in the order of `items`.

    Raises:
        UserError: a target is none of the items, or items are not ascending.
    """
    counts, items = np.asarray(popularity), as_ids(items)
    if counts.shape != items.shape:
        raise UserError(f"popularity: {counts.shape} counts for {len(items)} items; give one an item, in their order")
    places = places_of(items, as_ids(targets))
    ordered, own = np.sort(counts), counts[places]
    upto, below = (np.searchsorted(ordered, own, side) for side in ("right", "left"))
    above, equal = len(items) - upto, upto - below - 1
    pairs = seen_pairs(seen, items, places)
    theirs, mine = counts[pairs.places], own[pairs.samples]
    above = above - np.bincount(pairs.samples[theirs > mine], minlength=len(own))
    equal = equal - np.bincount(pairs.samples[theirs == mine], minlength=len(own))
    return above + half_up(equal)


def retrieval_metrics(ranks: Array, ks: Sequence[int] = (10, 50), prefix: str = "") -> dict[str, float]:
    """`HR@k`, `NDCG@k` for each k, and `MRR`, of ranks [n] that count from 0; NaN where there is no sample.

    One item is relevant: the hit rate is the share of samples whose target is among the first k (the recall), NDCG
    gives a hit at rank r the gain 1 / log2(r + 2), and the reciprocal rank 1 / (r + 1) is not cut off.

    Raises:
        UserError: a k is below 1.
    """
    if bad := [k for k in ks if k < 1]:
        raise UserError(f"metrics: k={bad[0]}: give at least 1")
    ranks = np.asarray(ranks, dtype=np.int64)
    hits = {k: ranks < k for k in ks}
    gains, reciprocal = 1.0 / np.log2(ranks + 2.0), 1.0 / (ranks + 1.0)
    values = {f"HR@{k}": hits[k].astype(np.float64) for k in ks}
    values |= {f"NDCG@{k}": np.where(hits[k], gains, 0.0) for k in ks}
    values["MRR"] = reciprocal
    return {f"{prefix}{name}": float(each.mean()) if len(ranks) else float("nan") for name, each in values.items()}


def on_grid(vectors: Tensor, what: str) -> Tensor:
    """Vectors [n, D] → [n, D] float64 of unit length, in multiples of 2⁻²⁶; a zero vector stays.

    Squares are added column by column: torch's own sum takes another order for another shape.

    Raises:
        UserError: a number is not finite: every comparison with it is false, and the target would come out first.
    """
    wide = vectors.to(torch.float64)
    squares = wide.new_zeros(len(wide))
    for column in wide.unbind(dim=1):
        squares += column * column
    if not bool(torch.isfinite(squares).all()):
        raise UserError(f"ranking: {what} holds a number that is not finite; train with a smaller learning rate")
    lengths = squares.sqrt().clamp_(min=_SHORTEST)
    return wide.div(lengths.unsqueeze(1)).mul_(_GRID).round_().div_(_GRID)


def half_up(ties: np.ndarray) -> np.ndarray:
    """Half of [n] int64, rounded up."""
    return (ties + 1) // 2


def as_ids(values: Array) -> np.ndarray:
    """[n] int64 in host memory."""
    return (values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)).astype(np.int64)
