"""Which rank owns which table, and in which group it is computed.

Everything here is a pure function of its arguments, in float64 and in a fixed order: equal costs on every rank give
equal placements on every rank.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from nestlab.batching.table_groups import table_groups
from nestlab.errors import UserError


@dataclass(frozen=True)
class Placement:
    """Who owns each table, and which tables are computed and exchanged together. T tables, G groups.

    Attributes:
        owner: [T], the rank of each table.
        groups: [G], numbers of tables, in the order in which forward goes through them; a group may lack tables of a
            rank. Within a group, a rank goes through its tables in the order given.

    Raises:
        UserError: a table stands in no group or in two, a group is empty, or an owner is negative.
    """

    owner: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", tuple(int(rank) for rank in self.owner))
        object.__setattr__(self, "groups", tuple(tuple(int(t) for t in group) for group in self.groups))
        if negative := [t for t, rank in enumerate(self.owner) if rank < 0]:
            raise UserError(f"placement: table {negative[0]} has owner {self.owner[negative[0]]}; ranks begin at 0")
        if not all(self.groups):
            raise UserError(f"placement: group {self.groups.index(())} is empty; leave it out")
        listed = sorted(t for group in self.groups for t in group)
        if listed != list(range(len(self.owner))):
            raise UserError(
                f"placement: groups name the tables {listed} of {len(self.owner)}; name each in exactly one group"
            )

    @property
    def tables(self) -> int:
        """T."""
        return len(self.owner)

    def owned(self, group: int, rank: int) -> tuple[int, ...]:
        """The tables of one group that a rank owns, in the group's order."""
        return tuple(t for t in self.groups[group] if self.owner[t] == rank)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """All tables that a rank owns, ascending."""
        return tuple(t for t, owner in enumerate(self.owner) if owner == rank)

    def check(self, ranks: int) -> None:
        """Raises UserError where a table belongs to a rank that does not exist."""
        if beyond := [t for t, rank in enumerate(self.owner) if rank >= ranks]:
            t = beyond[0]
            raise UserError(f"placement: table {t} belongs to rank {self.owner[t]} of {ranks}; place it on one of them")


def lpt(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """[T] the rank of each table: longest processing time first (Graham, 1969).

    Tables by falling cost, equal ones by number, each to the rank whose load is then the least, of equal ones to the
    first. At most 4/3 of the best possible largest load. No rank stays below the cost of the dearest table.

    Raises:
        UserError: there is no rank.
        ValueError: a cost is negative or not finite.
    """
    check_costs(costs)
    if ranks < 1:
        raise UserError(f"placement: {ranks} ranks; give at least 1")
    owner = [0] * len(costs)
    loads = [(0.0, rank) for rank in range(ranks)]
    for table in sorted(range(len(costs)), key=lambda t: (-costs[t], t)):
        load, rank = heapq.heappop(loads)
        owner[table] = rank
        heapq.heappush(loads, (load + costs[table], rank))
    return tuple(owner)


def grouped(owner: Sequence[int], costs: Sequence[float], ranks: int, groups: int = 1, slope: float = 0.0) -> Placement:
    """The tables of each rank in groups by `table_groups`; group g is what all ranks compute in their g-th place.

    Equal costs keep the tables of a rank in the order of their numbers. A rank with fewer tables than groups has none
    in the last ones.

    Raises:
        UserError: as `table_groups` and `Placement`.
    """
    of_ranks = [[t for t, rank in enumerate(owner) if rank == r] for r in range(ranks)]
    cut = [
        [tuple(tables[place] for place in group) for group in table_groups([costs[t] for t in tables], groups, slope)]
        for tables in of_ranks
    ]
    joined = zip_longest(*cut, fillvalue=())
    placement = Placement(tuple(owner), tuple(tuple(t for own in group for t in own) for group in joined))
    placement.check(ranks)
    return placement


def rank_loads(costs: Sequence[float], owner: Sequence[int], ranks: int) -> np.ndarray:
    """[W] float64, the summed cost of each rank's tables."""
    return np.bincount(np.asarray(owner, dtype=np.int64), np.asarray(costs, dtype=np.float64), ranks)


def load_ratio(costs: Sequence[float], owner: Sequence[int], ranks: int) -> float:
    """Largest load over mean load: how much longer the slowest rank takes. 1 where nothing costs anything."""
    loads = rank_loads(costs, owner, ranks)
    total = float(loads.sum())
    return float(loads.max()) * ranks / total if total > 0 else 1.0


def check_costs(costs: Sequence[float]) -> None:
    """Raises ValueError where a cost is negative or not finite."""
    if wrong := [t for t, cost in enumerate(costs) if not 0 <= cost < math.inf]:
        raise ValueError(f"cost of table {wrong[0]}: {costs[wrong[0]]}; it must be finite and 0 or more")
