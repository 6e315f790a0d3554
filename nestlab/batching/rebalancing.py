"""A new placement when measured costs have drifted, with few tables moved.

Deterministic as `nestlab.batching.placement`: ranks that are given equal costs decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nestlab.batching.placement import check_costs, load_ratio, rank_loads
from nestlab.errors import UserError

_PROGRESS = 1e-9  # of the mean load: what a step gains at least, well above rounding, so that the search ends


class Drift:
    """Watches what tables cost, and proposes a placement when the ranks' loads drift apart.

    A proposal needs a ratio (largest load over mean) above `threshold` and a gain of at least `margin`; it aims at
    `threshold − margin`. So a ratio that wavers about the threshold moves nothing to and fro, and tables do not move
    for a gain that moving eats up. Costs are means with exponentially falling weights.

    Args:
        owner: [T], the placement to begin with.
        threshold, margin: of ratios.
        newest: share of the newest measurement in a cost, in (0, 1].

    Raises:
        UserError: threshold below 1, margin not positive, or newest outside (0, 1].
    """

    def __init__(
        self, owner: Sequence[int], ranks: int, threshold: float = 1.2, margin: float = 0.05, newest: float = 0.1
    ) -> None:
        if not threshold >= 1:
            raise UserError(f"drift: threshold {threshold}; a ratio of largest to mean load is at least 1")
        if not margin > 0:
            raise UserError(f"drift: margin {margin}; give a positive gain in the ratio, e.g. 0.05")
        if not 0 < newest <= 1:
            raise UserError(f"drift: newest {newest}; give the newest measurement a share above 0 and up to 1")
        self._owner, self._ranks = tuple(owner), ranks
        self._threshold, self._margin, self._newest = threshold, margin, newest
        self._costs: np.ndarray | None = None

    @property
    def owner(self) -> tuple[int, ...]:
        """The placement that is in force."""
        return self._owner

    @property
    def costs(self) -> tuple[float, ...]:
        """[T], the mean cost of each table; zeros before the first measurement."""
        return (0.0,) * len(self._owner) if self._costs is None else tuple(self._costs.tolist())

    @property
    def ratio(self) -> float:
        """Largest over mean load of the placement in force."""
        return load_ratio(self.costs, self._owner, self._ranks)

    def measure(self, costs: Sequence[float]) -> None:
        """What each table cost, [T] in any unit, since the last call; the same numbers on every rank (`share_costs`).

        Raises:
            ValueError: another number of tables, or a cost that is negative or not finite.
        """
        if len(costs) != len(self._owner):
            raise ValueError(f"drift: costs of {len(costs)} tables for {len(self._owner)}")
        check_costs(costs)
        new = np.asarray(costs, dtype=np.float64)
        self._costs = new if self._costs is None else self._costs + self._newest * (new - self._costs)

    def propose(self) -> tuple[int, ...] | None:
        """A better placement, or None where the one in force is good enough. Call `moved` once tables have moved."""
        ratio = self.ratio
        if ratio <= self._threshold:
            return None
        goal = max(1.0, self._threshold - self._margin)
        owner = rebalance(self.costs, self._owner, self._ranks, goal)
        gain = ratio - load_ratio(self.costs, owner, self._ranks)
        return owner if gain >= self._margin else None

    def moved(self, owner: Sequence[int]) -> None:
        """This placement is in force now."""
        if len(owner) != len(self._owner):
            raise ValueError(f"drift: owners of {len(owner)} tables for {len(self._owner)}")
        self._owner = tuple(owner)


def rebalance(costs: Sequence[float], owner: Sequence[int], ranks: int, goal: float) -> tuple[int, ...]:
    """A placement near `owner` [T] whose largest load over mean is at most `goal`, or as low as the search finds.

    Steps from the rank with the largest load, each a table given away or two exchanged: the one after which the two
    ranks reach the goal with the fewest tables moved, or else come nearest to it. One table moves where one is enough.
    At the end each table goes home where the ratio allows it. A goal below what the dearest table costs is raised to
    it: no placement does better.

    Raises:
        ValueError: a cost is negative or not finite.
    """
    check_costs(costs)
    cost, home = np.asarray(costs, dtype=np.float64), np.array(owner, dtype=np.int64)
    mean = float(cost.sum()) / ranks
    if not mean > 0:
        return tuple(home.tolist())
    level, now = max(goal * mean, float(cost.max())), home.copy()
    while (loads := rank_loads(cost, now, ranks)).max() > level + _PROGRESS * mean:
        step = _step(cost, now, loads, level)
        if step is None:
            break
        now[list(step)] = list(step.values())
    _go_home(cost, now, home, ranks, level)
    return tuple(now.tolist())


def _step(cost: np.ndarray, owner: np.ndarray, loads: np.ndarray, level: float) -> dict[int, int] | None:
    """New owners of one or two tables, after which the larger of two loads is smaller; None: there is no such step."""
    high = int(loads.argmax())
    mine, others = np.flatnonzero(owner == high), np.flatnonzero(owner != high)
    to = np.delete(np.arange(loads.size), high)
    moves = _larger(loads[high], loads[to], cost[mine, None])
    swaps = _larger(loads[high], loads[owner[others]], cost[mine, None] - cost[others])
    best = [_least(moves), _least(swaps)]
    reached = [max(value, level) for _, value in best]
    which = 0 if reached[0] <= reached[1] else 1
    (place, column), value = best[which]
    if value >= loads[high] - _PROGRESS * loads.mean():
        return None
    table = int(mine[place])
    if which == 0:
        return {table: int(to[column])}
    return {table: int(owner[others[column]]), int(others[column]): high}


def _larger(high: float, low: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The larger of two loads once `given` has gone from the high to the low one."""
    return np.maximum(high - given, low + given)


def _least(values: np.ndarray) -> tuple[tuple[int, int], float]:
    """Where the least of [n, m] is, the first of equal ones, and what it is; infinite where there is none."""
    if not values.size:
        return (0, 0), float("inf")
    place, column = divmod(int(values.argmin()), values.shape[1])
    return (place, column), float(values[place, column])


def _go_home(cost: np.ndarray, now: np.ndarray, home: np.ndarray, ranks: int, level: float) -> None:
    """Takes back, in place, each move that the goal does not need; the dearest tables, whose move costs most, first."""
    reached = max(level, float(rank_loads(cost, now, ranks).max()))
    moved = np.flatnonzero(now != home)
    for table in moved[np.lexsort((moved, -cost[moved]))].tolist():
        away, now[table] = now[table], home[table]
        if rank_loads(cost, now, ranks).max() > reached:
            now[table] = away
