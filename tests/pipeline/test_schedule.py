"""Schedules as data: derivation against the hand-written table, row classes, the validator."""

from __future__ import annotations

from functools import cache

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestlab.errors import UserError
from nestlab.pipeline import Edge, Entry, InvalidSchedule, Lane, Schedule, Shape, Stage, build, validate
from nestlab.pipeline.accesses import (
    RowClass,
    common,
    direct_accesses,
    keys_of,
    new_keys,
    only,
    victims,
)
from nestlab.pipeline.derivation import plain_order, required_pairs
from nestlab.pipeline.edges import table, table_pairs
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core
BATCHES = 6
TIERS = ("direct", "dual_buffer", "slot_cache")
FORMS = [
    Shape(tier, evicts=evicts, foresees=foresees, split=split)
    for tier in TIERS
    for evicts, foresees in ((False, False), (True, False), (True, True))
    for split in (False, True)
]
DEEP = [
    Shape(tier, depth, evicts, evicts, split)
    for tier in TIERS
    for depth, evicts, split in (
        (2, False, False),
        (3, True, True),
        (4, True, False),
        (5, False, False),
        (5, True, True),
        (6, True, True),
        (6, False, True),
    )
]


def shape_id(shape: Shape) -> str:
    options = [name for name in ("evicts", "foresees", "split") if getattr(shape, name)]
    return "-".join([shape.tier, str(shape.depth), *options])


by_form = pytest.mark.parametrize("shape", FORMS, ids=shape_id)
by_depth = pytest.mark.parametrize("shape", DEEP, ids=shape_id)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return build(Techniques())


def closure(pairs) -> set:
    """All pairs of which the second is reached from the first, by networkx: beside the bit sets of the suite."""
    return set(nx.transitive_closure_dag(nx.DiGraph(pairs)).edges)


@cache
def built(shape: Shape) -> Schedule:
    return build(shape)


@cache
def derived(shape: Shape, batches: int = BATCHES) -> tuple:
    return tuple(required_pairs(plain_order(built(shape).entries, batches), shape.accesses))


@by_form
def test_table_implies_derivation(shape):
    assert set(derived(shape)) <= closure(table_pairs(built(shape), table(shape), BATCHES))


@by_form
def test_derivation_implies_table(shape):
    assert set(table_pairs(built(shape), table(shape), BATCHES)) <= closure(derived(shape))


@by_form
def test_every_row_of_the_table_is_laid_over_the_schedule(shape):
    schedule = built(shape)
    for row in table(shape):
        assert len(table_pairs(schedule, [row], BATCHES)) == BATCHES + row.delta, row


@by_form
def test_templates_are_the_same_for_every_batch(shape):
    """The templates, laid out again, imply every pair derived from scratch on a longer window."""
    assert set(derived(shape, 9)) <= closure(built(shape).required_only().pairs(9))


@by_form
def test_plain_is_one_total_order(shape):
    """`plain` does not prefetch: its edges leave a single order, batch after batch."""
    schedule = built(shape)
    graph = nx.DiGraph(schedule.pairs(4))
    assert len(list(nx.topological_generations(graph))) == len(schedule.entries) * 4


def reaches(shape: Shape, source: Stage, delta: int, target: Stage) -> bool:
    """Whether source(t+delta) → target(t) is required, directly or through others."""
    keys = plain_order(built(shape).entries, BATCHES)
    last = BATCHES - 1
    first, second = (
        next(k for k in keys if k.stage is s and k.batch == b) for s, b in ((source, last + delta), (target, last))
    )
    return (first, second) in _closed(shape)


@cache
def _closed(shape: Shape) -> set:
    return closure(derived(shape))


@pytest.mark.parametrize("split", [False, True])
def test_what_the_tiers_leave_free(split):
    """The reason for each tier's rules: what may overlap, and what may not."""
    fetch = Stage.RETRIEVE if split else Stage.PREPARE
    direct, buffers, slots = (Shape(tier, evicts=True, split=split) for tier in TIERS)
    for shape in (direct, buffers, slots):
        assert not reaches(shape, Stage.UPDATE, -1, fetch)
    assert reaches(buffers, Stage.UPDATE, -1, Stage.COMMIT) and not reaches(slots, Stage.UPDATE, -1, Stage.COMMIT)
    assert reaches(slots, Stage.UPDATE, -2, Stage.COMMIT)
    assert not reaches(buffers, Stage.WRITEBACK, -1, fetch) and reaches(buffers, Stage.WRITEBACK, -2, fetch)
    assert reaches(slots, Stage.WRITEBACK, -1, fetch)
    assert reaches(buffers, Stage.UPDATE, 0, Stage.WRITEBACK) and not reaches(slots, Stage.UPDATE, 0, Stage.WRITEBACK)
    assert reaches(direct, Stage.UPDATE, -1, Stage.EMB_EXCHANGE) and not reaches(direct, Stage.UPDATE, -5, fetch)


@by_depth
def test_prefetched_depth_is_bounded_and_list_order_is_safe(shape):
    """`build` has validated it; beside that a stage comes exactly its look-ahead before the batch computed."""
    schedule = built(shape)
    ahead = {entry.stage: entry.ahead for entry in schedule.entries}
    assert ahead[Stage.LOAD] == shape.depth - 1 - (shape.depth == 6 and not shape.split)
    order = closure(schedule.pairs(9))
    for stage, batches in ((stage, batches) for stage, batches in ahead.items() if batches):
        sources = [a.batch for a, b in order if b.stage is stage and b.batch == 8 and a.stage is Stage.UPDATE]
        assert max(sources, default=-1) == 8 - batches - 1, stage


@pytest.mark.parametrize("tier", TIERS)
def test_what_prefetching_leaves_to_the_critical_path(tier):
    ahead = {entry.stage: entry.ahead for entry in build(Shape(tier, 5)).entries}
    assert [ahead[s] for s in (Stage.LOAD, Stage.H2D, Stage.ROUTE, Stage.PREPARE)] == [4, 3, 2, 1]
    if tier == "direct":
        assert Stage.COMMIT not in ahead and Stage.WRITEBACK not in ahead
    else:
        assert ahead[Stage.COMMIT] == ahead[Stage.WRITEBACK] == (tier == "slot_cache")


def test_six_stages_each_a_batch_apart():
    ahead = {entry.stage: entry.ahead for entry in build(Shape("slot_cache", 6, split=True)).entries}
    stages = (Stage.LOAD, Stage.ROUTE, Stage.POST, Stage.PLAN, Stage.RETRIEVE, Stage.FORWARD)
    assert [ahead[stage] for stage in stages] == [5, 4, 3, 2, 1, 0]


def test_shapes_that_make_no_sense():
    with pytest.raises(UserError, match="no device tier 'hbm'"):
        Shape("hbm")
    with pytest.raises(UserError, match="pipeline_depth=7: it must be 1 to 6"):
        Shape(depth=7)


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
    assert all(entry.stage in text for entry in schedule.entries)
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
    assert victims(3).disjoint(keys_of(3)) and victims(3).disjoint(keys_of(2)) and not victims(3).disjoint(keys_of(1))
    assert not keys_of(2).disjoint(keys_of(3)) and not new_keys(2).disjoint(keys_of(3))
