"""What a tensor-train table is made of: what its rows and a row's weights factor into, and the ranks between cores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index

import numpy as np

from nestlab.errors import UserError

MOST_ROWS = 1 << 62  # a row number is an int64


@dataclass(frozen=True)
class TTShape:
    """A table of Πp rows × Πq weights as d cores; core k is [p_k, r_(k−1)·q_k·r_k], r_0 = r_d = 1 (Oseledets, 2011).

    Row i has the digits i_1 … i_d in the mixed base p, the last the fastest; its weights are the product of the slices
    G_1[i_1] · … · G_d[i_d], read as a vector of Πq in the same order.

    Attributes:
        row_factors: p_1 … p_d.
        dim_factors: q_1 … q_d.
        ranks: r_1 … r_(d−1).

    Raises:
        UserError: fewer than 2 or more than 4 cores, lists of unequal length, a number below 1 or not whole, or more
            than 2^62 rows.
    """

    row_factors: tuple[int, ...]
    dim_factors: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("row_factors", "dim_factors", "ranks"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not 2 <= self.cores <= 4:
            raise UserError(f"tensor train: {self.cores} cores; give 2, 3 or 4 row factors")
        if len(self.dim_factors) != self.cores or len(self.ranks) != self.cores - 1:
            raise UserError(
                f"tensor train: {self.cores} row factors go with as many dim factors and {self.cores - 1} ranks, "
                f"not with {len(self.dim_factors)} and {len(self.ranks)}"
            )
        if min((*self.row_factors, *self.dim_factors, *self.ranks)) < 1:
            raise UserError(f"tensor train: {self} has a number below 1; give whole numbers of at least 1")
        if self.rows > MOST_ROWS:
            raise UserError(f"tensor train: {self.rows} rows; at most 2^62, a row number is an int64")

    @property
    def cores(self) -> int:
        """d."""
        return len(self.row_factors)

    @property
    def rows(self) -> int:
        """Πp; a table may use fewer."""
        return math.prod(self.row_factors)

    @property
    def dim(self) -> int:
        """Πq."""
        return math.prod(self.dim_factors)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """r_0 … r_d."""
        return (1, *self.ranks, 1)

    @property
    def slices(self) -> tuple[tuple[int, int, int], ...]:
        """(r_(k−1), q_k, r_k) of each core: what one of its p_k slices is."""
        ranks = self.all_ranks
        return tuple((ranks[k], q, ranks[k + 1]) for k, q in enumerate(self.dim_factors))

    @property
    def widths(self) -> tuple[int, ...]:
        """Weights a slice of each core."""
        return tuple(math.prod(each) for each in self.slices)

    @property
    def parameters(self) -> int:
        """Weights of all cores."""
        return sum(p * width for p, width in zip(self.row_factors, self.widths, strict=True))

    @property
    def strides(self) -> tuple[int, ...]:
        """Rows that one step of digit k stands for: Π p after k. Row // strides[k] % p_k is digit k."""
        return tuple(math.prod(self.row_factors[k + 1 :]) for k in range(self.cores))

    @property
    def products(self) -> tuple[int, ...]:
        """E_1 … E_(d−1): floating-point operations of the product that adds core k + 1 to a prefix of k cores."""
        widths = tuple(accumulate(self.dim_factors, lambda a, b: a * b))
        return tuple(2 * widths[k] * r_in * q * r_out for k, (r_in, q, r_out) in enumerate(self.slices[1:]))

    def digits(self, rows: np.ndarray) -> np.ndarray:
        """[d, n] int64 of rows [n] int64, by whole-number division."""
        return np.stack([rows // s % p for s, p in zip(self.strides, self.row_factors, strict=True)])


def _whole(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(index(value) for value in values)
    except TypeError:
        raise UserError(f"tensor train: {name} is {values!r}; give a list of whole numbers") from None


def suggest(rows: int, dim: int, cores: int = 3, rank: int | Sequence[int] = 32) -> TTShape:
    """A shape for at least `rows` rows of `dim` weights: row factors that differ by at most 1, dim factors ascending.

    Raises:
        UserError: as `TTShape`: a number below 1, too many cores, or ranks that are not one fewer than cores.
    """
    if not 2 <= cores <= 4:
        raise UserError(f"tensor train: {cores} cores; give 2, 3 or 4")
    if rows < 1 or dim < 1:
        raise UserError(f"tensor train: {rows} rows × {dim} in {cores} cores; give numbers of at least 1")
    ranks = tuple(rank) if isinstance(rank, Sequence) else (rank,) * (cores - 1)
    return TTShape(_even_cover(rows, cores), _factors(dim, cores), ranks)


def _even_cover(total: int, count: int) -> tuple[int, ...]:
    """`count` numbers that differ by at most 1, ascending, with the least product that is at least `total`."""
    largest = max(1, round(total ** (1 / count)))
    while largest**count < total:
        largest += 1
    while largest > 1 and (largest - 1) ** count >= total:  # a float's root may lie above
        largest -= 1
    smaller = 0
    while smaller + 1 < count and (largest - 1) ** (smaller + 1) * largest ** (count - smaller - 1) >= total:
        smaller += 1
    return (largest - 1,) * smaller + (largest,) * (count - smaller)


def _factors(total: int, count: int) -> tuple[int, ...]:
    """`count` whole numbers, ascending, whose product is `total`: of all such lists the one with the least sum."""
    if count == 1:
        return (total,)
    splits = ((q, *_factors(total // q, count - 1)) for q in range(1, total + 1) if total % q == 0)
    return tuple(sorted(min(splits, key=lambda factors: (sum(factors), factors))))
