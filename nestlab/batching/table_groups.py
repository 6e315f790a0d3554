"""A rank's tables cut into groups: while one group is exchanged, the next one is computed.

The order and the sizes are EcoRec's (SC '24): groups in ascending cost in forward, so that the first exchange can begin
early; numbers of tables that fall by a constant slope, since the first tables are the cheapest. Backward goes through
the groups in reverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from nestlab.errors import UserError


def table_groups(costs: Sequence[float], groups: int, slope: float = 0.0) -> tuple[tuple[int, ...], ...]:
    """The tables 0 … n−1 in groups, in forward order, the cheapest first; equal costs in the order of their numbers.

    With equal costs the order is that of the numbers: what reordering is compared with. No group is empty: fewer tables
    than groups give a group each.

    Args:
        costs: [n], of each table.
        groups: g ≥ 1.
        slope: 0 … 1, of the steepest one that leaves a table in the last group.

    Raises:
        UserError: groups below 1, or a slope outside 0 … 1.
        ValueError: a cost is negative or not finite.
    """
    if not all(0 <= cost < math.inf for cost in costs):
        raise ValueError(f"table costs must be finite and 0 or more: {list(costs)}")
    order = sorted(range(len(costs)), key=lambda table: (costs[table], table))
    cut, begin = [], 0
    for size in group_sizes(len(costs), groups, slope):
        cut.append(tuple(order[begin : begin + size]))
        begin += size
    return tuple(cut)


def group_sizes(tables: int, groups: int, slope: float = 0.0) -> tuple[int, ...]:
    """Tables of each group in forward order: they never rise, sum to n, and are at least 1; fewer groups where n < g.

    Exact sizes are n/g + k·((g−1)/2 − i) with k = slope · 2(n−g)/(g(g−1)); at slope 1 the last one is 1. Largest
    remainders make them whole, which keeps the order: of equal whole parts the earlier has the larger remainder.

    Raises:
        UserError: as `table_groups`.
    """
    if groups < 1:
        raise UserError(f"table_groups: {groups}; give at least 1")
    if not 0 <= slope <= 1:
        raise UserError(f"group_slope: {slope}; give 0 (groups of equal number) … 1 (the steepest)")
    g = min(groups, tables)
    if g < 2:
        return (tables,) * g
    k = Fraction(slope) * Fraction(2 * (tables - g), g * (g - 1))  # without rounding: 1 would become 0.999…, and then 0
    exact = [Fraction(tables, g) + k * (Fraction(g - 1, 2) - i) for i in range(g)]
    sizes = [math.floor(size) for size in exact]
    by_rest = sorted(range(g), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_rest[: tables - sum(sizes)]:
        sizes[i] += 1
    return tuple(sizes)
