"""The rules by which samples are put into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from nestlab import plugins
from nestlab.batching import kernels, kmeans_kernels
from nestlab.batching.samples import SampleKeys, bounds, cost
from nestlab.errors import UserError


class ClusteringRule(Protocol):
    """Chooses an order of samples in which each micro-batch has few distinct keys.

    Deterministic, a function of its arguments alone: ranks do not ask each other.
    """

    def order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        """[B] int64, a permutation: the sample at each place. Micro-batch i has places i·B//parts … (i+1)·B//parts − 1.

        parts ≥ 1, and may exceed B.
        """
        ...


_RARE = 64  # a key with so few uses is never too frequent to count


@dataclass(frozen=True)
class InTimeOrder:
    """Leaves samples as they are."""

    name: ClassVar[str] = "none"

    def order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        return np.arange(samples.size)


@dataclass(frozen=True)
class Greedy:
    """Parts grown by overlap, then samples exchanged wherever that saves a key. Never costs more than time order.

    Growing fills part after part with the sample that brings the fewest new keys, once depth first and once breadth
    first; exchanges go on from the cheaper of the two. What makes next to no difference is left out, for speed:
    keys so frequent that all parts have them in any order, and, in exchanges, keys of one sample.

    Attributes:
        exchanges: tried a sample.
        touches: keys looked at in exchanges, at most: a bound of the time where samples have many keys.
    """

    exchanges: int = 64
    touches: int = 2_000_000
    name: ClassVar[str] = "greedy"

    def __post_init__(self) -> None:
        if min(self.exchanges, self.touches) < 0:
            raise UserError(f"Greedy: exchanges={self.exchanges}, touches={self.touches}; give 0 or more")
        self._order(_TWO, 2)  # compiles, or loads, every kernel now

    def order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        return self._order(samples, parts) if _worth_it(samples, parts) else np.arange(samples.size)

    def _order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        most, cuts = max(_RARE, samples.size // (2 * parts)), bounds(samples.size, parts)
        offsets, keys, unique = kernels.thin(samples.offsets, samples.keys, samples.unique, 1, most)
        uses = kernels.by_key(offsets, keys, unique)
        grown = [kernels.grow(offsets, keys, *uses, cuts, depth_first) for depth_first in (True, False)]
        order = _cheapest(samples, parts, grown)
        offsets, keys, unique = kernels.thin(offsets, keys, unique, 2, most)
        uses = kernels.by_key(offsets, keys, unique)
        kernels.exchange(offsets, keys, *uses, cuts, order, self.exchanges * samples.size, self.touches)
        return _cheapest(samples, parts, [np.arange(samples.size), _in_time_order_within(order, cuts)])


@dataclass(frozen=True)
class KMeans:
    """K-means on key sets: a centroid is the mean of its samples' keys, clusters have equal size.

    It starts from the samples sorted by their most frequent key, cut into equal parts. The cheapest round counts, time
    order included. Centroids of thousands of rare keys say little, which is why it falls behind `Greedy`.

    Attributes:
        rounds: of assignment, at most; it ends earlier where nothing moves.
    """

    rounds: int = 10
    name: ClassVar[str] = "kmeans"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"KMeans: rounds={self.rounds}; give 1 or more")
        self._order(_TWO, 2)

    def order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        return self._order(samples, parts) if _worth_it(samples, parts) else np.arange(samples.size)

    def _order(self, samples: SampleKeys, parts: int) -> np.ndarray:
        offsets, keys, sizes = samples.offsets, samples.keys, np.diff(bounds(samples.size, parts))
        uses, scores = np.empty((samples.unique, parts), np.int32), np.empty((samples.size, parts))
        part = self._start(samples, sizes)
        orders = [np.arange(samples.size), np.argsort(part, kind="stable")]
        for _ in range(self.rounds):
            before = part.copy()
            kmeans_kernels.count_keys(offsets, keys, part, uses)
            kmeans_kernels.nearness(offsets, keys, uses, sizes, scores)
            kmeans_kernels.assign(scores, sizes, part)
            if (part == before).all():
                break
            orders.append(np.argsort(part, kind="stable"))
        return _cheapest(samples, parts, orders)

    @staticmethod
    def _start(samples: SampleKeys, sizes: np.ndarray) -> np.ndarray:
        """[B] int64: the part of each sample before the first round."""
        frequency = np.bincount(samples.keys, minlength=samples.unique)
        top = kmeans_kernels.most_frequent(samples.offsets, samples.keys, frequency)
        rank = np.where(top < 0, 0, frequency[top])
        part = np.empty(samples.size, dtype=np.int64)
        part[np.lexsort((top, -rank))] = np.repeat(np.arange(sizes.size), sizes)
        return part


RULES: dict[str, type[ClusteringRule]] = {kind.name: kind for kind in (InTimeOrder, Greedy, KMeans)}


def rule(name: str) -> ClusteringRule:
    """The rule called `name` (none, greedy, kmeans), its kernels compiled; or one from outside (`nestlab.plugins`).

    Raises:
        UserError: no rule is called so.
    """
    if name not in RULES and plugins.accepts("clustering", name):
        return plugins.clustering(name)
    if name not in RULES:
        raise UserError(f"unknown clustering rule '{name}'; use one of {', '.join(RULES)}")
    return RULES[name]()


_TWO = SampleKeys(np.array([0, 1, 2]), np.array([0, 1]), 2)


def _worth_it(samples: SampleKeys, parts: int) -> bool:
    """Whether orders differ in cost at all: several parts, and one that holds several samples with keys."""
    return 1 < parts < samples.size and samples.keys.size > samples.unique


def _cheapest(samples: SampleKeys, parts: int, orders: list[np.ndarray]) -> np.ndarray:
    """The first of the cheapest."""
    return min(orders, key=lambda order: cost(samples, parts, order))


def _in_time_order_within(order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The same parts, each with its samples ascending."""
    part = np.empty(order.size, dtype=np.int64)
    part[order] = np.repeat(np.arange(cuts.size - 1), np.diff(cuts))
    return np.argsort(part, kind="stable")
