"""An order of ids in which those that occur together stand together: communities of a co-occurrence graph.

As EL-Rec does it (Wang et al., SC 2022): two ids are linked by every batch that holds both. A batch of 512 samples may
hold a hundred thousand pairs, so there is a budget of pairs for the whole graph, shared out evenly over the batches;
see `reorder_kernels.pair_up` for what is kept of a batch, and `Sampling` for which batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.data import reorder_kernels as kernels
from nestlab.data.reorder_count import Tally

MOST_NODES = (1 << 31) - 1  # a node is an int32


@dataclass(frozen=True)
class Sampling:
    """Which pairs become links.

    Attributes:
        batch: samples of a batch.
        pairs: about so many pairs are looked at in all. Each batch gets its share, but at least `batch` pairs; where
            that is too much for all batches, every s-th of them is taken.
        seed: of the random rings.
    """

    batch: int
    pairs: int
    seed: int

    def plan(self, batches: int) -> tuple[int, int]:
        """The stride s between the batches taken, and the pairs that each may have."""
        stride = max(1, -(-batches * self.batch // self.pairs))
        return stride, max(self.batch, self.pairs // max(1, -(-batches // stride)))


class Graph:
    """Links between the nodes 0 … n−1, added batch by batch."""

    def __init__(self, nodes: int, sampling: Sampling, batches: int) -> None:
        self._n, self._seed = nodes, np.uint64(sampling.seed)
        self._stride, self._quota = sampling.plan(batches)
        self._stamps = np.full(nodes, -1, np.int64)
        self._links = Tally(np.float64)
        self._batches = 0

    def add(self, nodes: np.ndarray, ends: np.ndarray) -> None:
        """The next batches: their nodes [m] int64 (−1: none), and where each batch ends in them [batches] int64."""
        unique, unique_ends = np.empty(len(nodes), np.int64), np.empty(len(ends), np.int64)
        kernels.distinct(nodes, ends, self._stamps, self._batches, unique, unique_ends)
        numbers = np.arange(self._batches, self._batches + len(ends))
        self._batches += len(ends)
        taken = numbers % self._stride == 0
        sizes = np.diff(unique_ends, prepend=0)
        if not taken.all():
            unique = unique[: sizes.sum()][np.repeat(taken, sizes)]
        sizes, numbers = sizes[taken], numbers[taken]
        count = int(pairs_in(sizes, self._quota).sum())
        keys, weights = np.empty(count, np.int64), np.empty(count)
        kernels.pair_up(unique, np.cumsum(sizes), numbers, self._seed, self._quota, self._n, keys, weights)
        self._links.add(keys, weights)

    def links(self) -> tuple[np.ndarray, np.ndarray]:
        """Every pair once, as smaller node · n + larger node [E] int64, ascending, and its weight [E] float64."""
        return self._links.result()


def pairs_in(sizes: np.ndarray, quota: int) -> np.ndarray:
    """[batches] int64: how many pairs `pair_up` makes of batches of so many distinct nodes."""
    every = sizes * (sizes - 1) // 2
    return np.where(every <= quota, every, sizes * np.maximum(1, quota // np.maximum(sizes, 1)))


@dataclass(frozen=True)
class Communities:
    """n nodes in an order in which each community is contiguous.

    Attributes:
        order: [n] int64, the nodes.
        sizes: [c] int64, of the communities in that order; a node without a link is one of its own.
    """

    order: np.ndarray
    sizes: np.ndarray


def communities(keys: np.ndarray, weights: np.ndarray, counts: np.ndarray, inside: str = "tree") -> Communities:
    """From the links of `Graph` and how often each node occurs, counts [n] int64; nodes are numbered by frequency.

    The communities come in descending order of how often one of their nodes occurs on average. `inside` one of them,
    the nodes come as in its `tree`, each of whose parts is contiguous and ordered likewise, or by `frequency`.
    """
    n = len(counts)
    starts, ends = np.empty(n + 1, np.int64), np.empty(n, np.int64)
    others, shares = np.empty(2 * len(keys), np.int32), np.empty(2 * len(keys), np.float32)
    kernels.neighbours(keys, weights, starts, ends, others, shares)
    sums = np.concatenate([[0.0], np.cumsum(shares, dtype=np.float64)])
    strengths = sums[starts[1:]] - sums[starts[:-1]]
    parents, first_child, sibling = (np.empty(n, np.int32) for _ in range(3))
    by_strength = np.argsort(strengths, kind="stable")
    kernels.aggregate(by_strength, starts, others, shares, strengths, parents, first_child, sibling)
    tops, order, means = np.flatnonzero(parents < 0), np.empty(n, np.int64), np.empty(n)
    sizes = np.empty(len(tops), np.int64)
    kernels.walk(tops, first_child, sibling, order, sizes)
    kernels.hot_first(order, parents, counts, first_child, sibling, means)
    kernels.walk(tops[np.argsort(-means[tops], kind="stable")], first_child, sibling, order, sizes)
    if inside == "frequency":
        order = order[np.lexsort((order, np.repeat(np.arange(len(sizes)), sizes)))]
    return Communities(order, sizes)


def batch_ends(lengths: np.ndarray, batch: int) -> np.ndarray:
    """Where each batch of `batch` samples ends among the ids of samples with lengths [samples] int64."""
    ends = np.cumsum(lengths)
    return ends[np.minimum(np.arange(batch, len(lengths) + batch, batch), len(lengths)) - 1]
