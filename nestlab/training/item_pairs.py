"""Some items of some samples: what each has seen, and what its sampled ranking is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.errors import UserError

Seen = tuple[np.ndarray | Tensor, np.ndarray | Tensor]  # ids [m] int64, sample by sample, and how many each has [n]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sample and item of each pair; which stand together in a block of samples is found by a search.

    Attributes:
        samples: [m] int64.
        places: [m] int64, of the items among all of them.
        keys: [m] int64, ascending, block · items + place; None before `by_block`.
        block, items: samples a block, and items in all.
    """

    samples: np.ndarray
    places: np.ndarray
    keys: np.ndarray | None = None
    block: int = 1
    items: int = 0

    @classmethod
    def none(cls) -> Pairs:
        return cls(*(np.zeros(0, np.int64) for _ in range(3)))

    def by_block(self, block: int, items: int) -> Pairs:
        """The same pairs, by block of so many samples, then by place."""
        keys = self.samples // block * items + self.places
        order = np.argsort(keys, kind="stable")
        return Pairs(self.samples[order], self.places[order], keys[order], block, items)

    def within(self, block: int, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """The pairs of a block whose items are first … stop − 1: sample in the block [m'], item in the chunk [m']."""
        begin, end = np.searchsorted(self.keys, [block * self.items + first, block * self.items + stop])
        samples, places = self.samples[begin:end] - block * self.block, self.places[begin:end] - first
        return torch.from_numpy(samples), torch.from_numpy(places)


def places_of(items: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """[n] int64: where each of `ids` [n] is among `items` [I], which ascend.

    Raises:
        UserError: items are not ascending, or an id is none of them.
    """
    if (items[1:] <= items[:-1]).any():
        raise UserError("ranking: the items are not ascending, each once; give numpy.unique of them")
    places, there = _find(items, ids)
    if not there.all():
        raise UserError(
            f"ranking: {int((~there).sum()):,} of {len(ids):,} targets are none of the {len(items):,} items, "
            f"{ids[~there][0]} is the first; add them to the items, or leave these samples out"
        )
    return places


def seen_pairs(seen: Seen | None, items: np.ndarray, target_places: np.ndarray) -> Pairs:
    """Each sample's seen items, once, as far as they are items and not its target.

    Raises:
        UserError: the lengths are not of these samples.
    """
    if seen is None:
        return Pairs.none()
    ids, lengths = (torch.as_tensor(each).cpu().numpy().astype(np.int64) for each in seen)
    if len(lengths) != len(target_places) or lengths.sum() != len(ids):
        raise UserError(
            f"ranking: {len(ids)} seen items in {len(lengths)} runs of {lengths.sum()} in all, for "
            f"{len(target_places)} samples; give a run a sample"
        )
    samples = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    places, there = _find(items, ids)
    there &= places != target_places[samples]
    keys = np.unique(samples[there] * len(items) + places[there])
    return Pairs(*np.divmod(keys, max(len(items), 1)))


def sampled_pairs(items: int, target_places: np.ndarray, numbers: np.ndarray, count: int, seed: int) -> Pairs:
    """`count` items a sample, uniform without replacement among all but its target.

    Args:
        items: how many there are.
        numbers: [n] int64, of the samples in their split: with the seed they alone decide, so that ranks, batches and
            the order of samples do not.

    Raises:
        UserError: there are not so many other items.
    """
    if not 1 <= count < items:
        raise UserError(f"ranking: {count} sampled items of {items - 1} others; give 1 … {items - 1}")
    drawn = np.empty((len(numbers), count), np.int64)
    for row, number in zip(drawn, numbers.tolist(), strict=True):
        row[:] = np.random.default_rng([seed, number]).choice(items - 1, count, replace=False)
    drawn += drawn >= target_places[:, None]
    return Pairs(np.repeat(np.arange(len(numbers), dtype=np.int64), count), drawn.reshape(-1))


def _find(items: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places [n] int64 among ascending items, and which ids [n] are there."""
    if not len(items):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    places = np.minimum(np.searchsorted(items, ids), len(items) - 1).astype(np.int64)
    return places, items[places] == ids
