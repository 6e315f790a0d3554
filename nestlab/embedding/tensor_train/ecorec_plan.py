"""What EcoRec knows of a look-up before it multiplies: sorted unique rows, prefixes, and where slices may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train import kernels_plan
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.kernels_ecorec import Prefixes
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.errors import UserError

MOST = (1 << 31) - 1  # indices of one look-up: they are counted in 32 bits


@dataclass(frozen=True, eq=False)
class Level:
    """Unique prefixes of k + 1 digits in ascending order, k = 1 … d − 1; those of d digits are the unique rows.

    Attributes:
        parent: [n_k] int32, the prefix one digit shorter: an item of the level before, or (first level) digit 1 itself.
        digit: [n_k] int32, the last digit.
        starts: [n_k + 1] int32, where the children of each begin: in the next level, or of rows in the sorted indices.
    """

    parent: Tensor
    digit: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return self.parent.numel()


@dataclass(frozen=True, eq=False)
class Span:
    """Part of a plan: from item to item of each level, and of the sorted indices."""

    levels: tuple[tuple[int, int], ...]
    indices: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Plan:
    """Sorted, deduplicated, by `plan`.

    Attributes:
        bags: what was asked for.
        order: [nnz] int32, the indices sorted by row, equal rows in the bags' order.
        bag: [nnz] int32, the bag of each sorted index.
        inverse: [nnz] int32, the unique row of each index in the bags' order.
        levels: d − 1 of them.
        longest: indices of the longest bag.
        grouped: the prefixes of d − 1 digits as the kernels take them, on a CPU.
    """

    bags: Bags
    order: Tensor
    bag: Tensor
    inverse: Tensor
    levels: tuple[Level, ...]
    longest: int
    grouped: Prefixes | None = None

    @property
    def unique(self) -> int:
        """n_u, unique rows."""
        return len(self.levels[-1])

    @property
    def prefixes(self) -> tuple[int, ...]:
        """n_1 … n_(d−1): unique prefixes of 2 … d digits."""
        return tuple(map(len, self.levels))

    @property
    def nbytes(self) -> int:
        own = sum(each.nbytes for level in self.levels for each in (level.parent, level.digit, level.starts))
        own += 0 if self.grouped is None else sum(each.nbytes for each in self.grouped[-3:])
        return self.bags.nbytes + self.order.nbytes + self.bag.nbytes + self.inverse.nbytes + own

    def cut(self, slices: int, widths: Sequence[int]) -> tuple[Span, ...]:
        """At most `slices` spans of about equal memory; widths [d − 1]: the numbers that an item of a level holds.

        A prefix of two digits (of two cores: of one) is never split, hence none at all: nothing is multiplied twice.
        """
        if not self.bags.nnz:
            return ()
        if slices == 1:
            return (Span(tuple((0, len(level)) for level in self.levels), (0, self.bags.nnz)),)
        bounds = [self._firsts()]
        for level in self.levels:  # of each item that may begin a slice: its first item of each level
            bounds.append(level.starts.cpu().numpy()[bounds[-1]])
        held = sum(width * at.astype(np.int64) for width, at in zip(widths, bounds, strict=False))
        cuts = np.searchsorted(held, held[-1] * np.arange(1, slices) // slices)
        edges = np.unique([0, *cuts, len(held) - 1])
        ends = [at[edges].tolist() for at in bounds]
        spans = [[(at[s], at[s + 1]) for at in ends] for s in range(len(edges) - 1)]
        return tuple(Span(tuple(each[:-1]), each[-1]) for each in spans)

    def _firsts(self) -> np.ndarray:
        """Items of the first level that may begin a slice, and the end."""
        level = self.levels[0]
        if len(self.levels) > 1 or not len(level):
            return np.arange(len(level) + 1)
        return _runs(level.parent.cpu().numpy())


def _runs(values: np.ndarray) -> np.ndarray:
    """Where runs of equal values begin, and the end."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1], [True]]))


def plan(shape: TTShape, bags: Bags) -> Plan:
    """By sort and one scan on a CPU; by torch elsewhere.

    Raises:
        UserError: on a CPU, a row that the shape does not have, or offsets that do not divide the rows.
    """
    return _plan_numba(shape, bags) if bags.rows.device.type == "cpu" else plan_torch(shape, bags)


def _plan_numba(shape: TTShape, bags: Bags) -> Plan:
    """`plan_torch` by kernels: about ten times as fast."""
    rows, count, depth = bags.rows.numpy(), bags.nnz, shape.cores - 1
    bag_at, order, bag, inverse = np.empty((4, count), np.int32)
    longest = kernels_plan.bags_of(bags.offsets.numpy(), bag_at)
    if longest < 0 or count > MOST:
        raise UserError(f"tensor train: bags' offsets do not divide {count} indices; at most {MOST} at once")
    words, bits = _sorted_words(shape, rows)
    if bits:
        kernels_plan.unpack(words, bits, bag_at, order, bag)
    else:  # too long for one word
        order[:] = np.argsort(rows, kind="stable")
        words, bag = rows[order].view(np.uint64), bag_at[order]
    parents, digits = np.empty((2, depth, count), np.int32)
    starts, counts = np.empty((depth, count + 1), np.int32), np.zeros(depth, np.int64)
    factors = np.array(shape.row_factors)
    kernels_plan.scan(words, bits, factors, order, inverse, parents, digits, starts, counts)
    levels = [(parents[k, :n], digits[k, :n], starts[k, : n + 1]) for k, n in enumerate(counts.tolist())]
    grouped = _grouped(shape, levels)
    made = (Level(*map(torch.from_numpy, level)) for level in levels)
    return Plan(bags, *map(torch.from_numpy, (order, bag, inverse)), tuple(made), longest, grouped)


def _grouped(shape: TTShape, levels: list[tuple[np.ndarray, ...]]) -> Prefixes:
    """Prefixes of the last level but one by their last digit; of two cores as if a digit 0 stood before."""
    parents, digits, indices = levels[-1]
    if len(levels) > 1:
        upper, second, starts = levels[-2]
    else:
        starts = (_runs(parents) if parents.size else np.zeros(1)).astype(np.int32)
        upper, second = np.zeros(starts.size - 1, np.int32), parents[starts[:-1]]
    order, offsets = np.empty(second.size, np.int32), np.empty(second.size + 1, np.int32)
    groups = np.empty(shape.row_factors[-2] + 1, np.int64)
    kernels_plan.group(second, starts, groups, order, offsets)
    return Prefixes(upper, starts, digits, indices, order, offsets, groups)


def _sorted_words(shape: TTShape, rows: np.ndarray) -> tuple[np.ndarray, int]:
    """Words `row << bits | position` [n] sorted by row, and bits; bits 0, and nothing sorted, if 64 are too few."""
    bits = max(1, (rows.size - 1).bit_length())
    words, spare = np.empty((2, rows.size), np.uint64)
    smallest, largest = kernels_plan.pack(rows, bits, words)
    if smallest < 0 or largest >= shape.rows:
        wrong = smallest if smallest < 0 else largest
        raise UserError(
            f"tensor train: row {wrong} is not in [0, {shape.rows}); take ids modulo the rows, or hash them"
        )
    length = largest.bit_length()
    if length + bits > 64:
        return words, 0
    passes = -(-length // kernels_plan.DIGIT)
    if passes:
        kernels_plan.sort_words(words, spare, bits, -(-length // passes), passes)
    return (spare if passes % 2 else words), bits


def plan_torch(shape: TTShape, bags: Bags) -> Plan:
    """The same of bags on any device, by torch alone."""
    every = torch.arange(bags.count, device=bags.rows.device)
    bag = torch.repeat_interleave(every, bags.offsets.diff(), output_size=bags.nnz)
    values, order = torch.sort(bags.rows, stable=True)
    values, sorted_inverse, counts = torch.unique_consecutive(values, return_inverse=True, return_counts=True)
    inverse = torch.empty_like(order).scatter_(0, order, sorted_inverse)
    longest = int(bags.offsets.diff().max()) if bags.count else 0
    levels: list[Level] = []
    for k in range(shape.cores - 1, 0, -1):
        digit, upper = values % shape.row_factors[k], values // shape.row_factors[k]
        if k > 1:
            values, parent, more = torch.unique_consecutive(upper, return_inverse=True, return_counts=True)
        else:
            parent, more = upper, counts
        levels.insert(0, Level(parent.int(), digit.int(), _starts(counts)))
        counts = more
    return Plan(bags, order.int(), bag[order].int(), inverse.int(), tuple(levels), longest)


def _starts(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.cumsum(counts, 0), (1, 0)).int()
