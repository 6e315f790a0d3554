"""Tables in groups: order by cost, sizes by a slope."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batching.table_groups import group_sizes, table_groups
from nestlab.errors import UserError

SLOPES = st.one_of(st.sampled_from([0.0, 0.1, 1.0]), st.floats(0, 1))
COSTS = st.lists(st.one_of(st.integers(0, 3).map(float), st.floats(0, 1e9)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(COSTS, st.integers(1, 12), SLOPES)
def test_groups_cut_the_tables_in_ascending_cost(costs, groups, slope):
    """Each table once, no group empty, numbers of tables that never rise, no dearer table before a cheaper."""
    cut = table_groups(costs, groups, slope)
    assert len(cut) == min(groups, len(costs)) and all(cut)
    order = [table for group in cut for table in group]
    assert sorted(order) == list(range(len(costs)))
    assert all((costs[a], a) < (costs[b], b) for a, b in pairwise(order))
    sizes = [len(group) for group in cut]
    assert all(a >= b for a, b in pairwise(sizes))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 400), st.integers(1, 20), SLOPES)
def test_sizes_follow_the_slope(tables, groups, slope):
    """Each within one table of the straight line, its sum exact; the line by the paper's formula, in plain numbers.

    Broken on purpose, each made this fail: k of half the size; remainders given to the last groups; numbers that rise.
    """
    sizes = group_sizes(tables, groups, slope)
    g = len(sizes)
    assert sum(sizes) == tables and all(size >= 1 for size in sizes)
    if g < 2:
        return
    k_max = 2 * (tables - g) / (g * (g - 1))
    first = tables / g + slope * k_max * (g - 1) / 2
    for i, size in enumerate(sizes):
        assert abs(size - (first - slope * k_max * i)) < 1 + 1e-9
    if slope == 1.0:
        assert sizes[-1] == 1
    if slope == 0.0:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("tables", "groups", "slope", "sizes"),
    [
        (28, 4, 0.0, (7, 7, 7, 7)),
        (28, 4, 1.0, (13, 9, 5, 1)),  # k_max = 2·24/12 = 4
        (28, 4, 0.5, (10, 8, 6, 4)),
        (10, 4, 0.0, (3, 3, 2, 2)),
        (10, 1, 1.0, (10,)),
        (3, 4, 0.5, (1, 1, 1)),
        (4, 4, 1.0, (1, 1, 1, 1)),
        (0, 4, 0.5, ()),
    ],
)
def test_sizes_by_hand(tables, groups, slope, sizes):
    assert group_sizes(tables, groups, slope) == sizes


def test_order_by_hand():
    assert table_groups([5.0, 1.0, 3.0, 1.0], 2) == ((1, 3), (2, 0))
    assert table_groups([2.0] * 4, 2) == ((0, 1), (2, 3))  # equal costs: the order of the numbers
    assert table_groups([5.0, 1.0, 3.0, 1.0], 2, slope=1.0) == ((1, 3, 2), (0,))


def test_what_makes_no_groups_is_refused():
    with pytest.raises(UserError, match="table_groups: 0; give at least 1"):
        table_groups([1.0], 0)
    for slope in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="group_slope"):
            table_groups([1.0, 2.0], 2, slope)
    for cost in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite and 0 or more"):
            table_groups([1.0, cost], 2)
