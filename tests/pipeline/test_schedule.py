"""Schedules as data: derivation against the hand-written table, row classes, the validator."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestlab.pipeline import Edge, Entry, InvalidSchedule, Lane, Schedule, Stage, build, validate
from nestlab.pipeline.accesses import RowClass, common, direct_accesses, keys_of, new_keys, only
from nestlab.pipeline.edges import DIRECT, EVERY_TIER, plain_order, required_pairs, table_pairs
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core
BATCHES = 5


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return build(Techniques())


def closure(pairs) -> set:
    return set(nx.transitive_closure_dag(nx.DiGraph(pairs)).edges)


def test_table_implies_derivation(schedule):
    derived = required_pairs(plain_order(schedule.entries, BATCHES), direct_accesses)
    assert set(derived) <= closure(table_pairs(schedule, EVERY_TIER + DIRECT, BATCHES))


def test_derivation_implies_table(schedule):
    derived = required_pairs(plain_order(schedule.entries, BATCHES), direct_accesses)
    assert set(table_pairs(schedule, EVERY_TIER + DIRECT, BATCHES)) <= closure(derived)


@pytest.mark.parametrize("forgotten", EVERY_TIER + DIRECT, ids=str)
def test_every_row_of_the_table_is_laid_over_the_schedule(schedule, forgotten):
    assert len(table_pairs(schedule, [forgotten], BATCHES)) == BATCHES + forgotten.delta


def test_templates_are_the_same_for_every_batch(schedule):
    """The templates, laid out again, imply every pair derived from scratch on a longer window."""
    derived = required_pairs(plain_order(schedule.entries, 9), direct_accesses)
    assert set(derived) <= closure(schedule.required_only().pairs(9))


def test_plain_is_one_total_order(schedule):
    """`plain` does not prefetch: its edges leave a single order, batch after batch."""
    graph = nx.DiGraph(schedule.pairs(4))
    assert len(list(nx.topological_generations(graph))) == len(schedule.entries) * 4


def test_list_order_that_breaks_an_edge_is_rejected(schedule):
    swapped = (schedule.entries[1], schedule.entries[0], *schedule.entries[2:])
    with pytest.raises(InvalidSchedule, match=r"list order breaks LOAD\(0\) → H2D\(0\)"):
        validate(Schedule("swapped", swapped, schedule.edges), direct_accesses)


def test_a_circle_is_rejected(schedule):
    circle = Edge(Stage.RELEASE, Stage.LOAD)
    with pytest.raises(InvalidSchedule, match="circle"):
        validate(Schedule("circle", schedule.entries, (*schedule.edges, circle)), direct_accesses)


def test_an_edge_to_nowhere_is_rejected(schedule):
    stray = Edge(Stage.UPDATE, Stage.LOAD, -1, source_part=3)
    with pytest.raises(InvalidSchedule, match=r"names UPDATE\(0,3\)"):
        validate(Schedule("stray", schedule.entries, (*schedule.edges, stray)), direct_accesses)


def test_an_action_twice_is_rejected(schedule):
    twice = (*schedule.entries, Entry(Stage.LOAD, Lane.LOAD))
    with pytest.raises(InvalidSchedule, match="occur twice"):
        validate(Schedule("twice", twice, schedule.edges), direct_accesses)


def test_text_names_every_entry_and_edge(schedule):
    text = str(schedule)
    assert all(stage in text for stage in Stage)
    assert text.count("required") == sum(edge.required for edge in schedule.edges)


BATCH = st.integers(0, 4)
CLASSES = st.builds(
    RowClass,
    inside=st.lists(BATCH, max_size=3).map(tuple),
    outside=st.lists(BATCH, max_size=3).map(tuple),
    unseen_before=st.one_of(st.none(), BATCH),
)


def members(rows: RowClass, key_sets: list[set[int]]) -> set[int]:
    universe = set().union(*key_sets)
    inside = [key_sets[b] for b in rows.inside]
    outside = [key_sets[b] for b in range(len(key_sets)) if rows.excludes(b)]
    return {k for k in universe if all(k in s for s in inside) and not any(k in s for s in outside)}


@given(CLASSES, CLASSES, st.lists(st.sets(st.integers(0, 6)), min_size=5, max_size=5))
def test_disjoint_is_never_claimed_of_classes_that_meet(a, b, key_sets):
    if a.disjoint(b):
        assert not members(a, key_sets) & members(b, key_sets)


def test_row_classes_of_the_design():
    assert only(3, 2).disjoint(keys_of(2))  # X(t) ∩ K(t−1) = ∅
    assert only(2, 3).disjoint(keys_of(3))  # D(t−1) ∩ K(t) = ∅
    assert common(2, 3).disjoint(only(2, 3))  # urgent and deferred rows
    assert new_keys(3).disjoint(keys_of(2)) and new_keys(3).disjoint(new_keys(2))
    assert not keys_of(2).disjoint(keys_of(3)) and not new_keys(2).disjoint(keys_of(3))
