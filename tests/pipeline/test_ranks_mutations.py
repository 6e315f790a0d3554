"""What each mechanism is for: left out on two ranks, other weights come of it, or an error; never the same bits.

Edges are taken out of a schedule, with every detour that would keep their order; random orders obey what is left.
Where a lane's own order hides an edge in threads, its action is moved to a lane of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from mutation_cases import Trial, spans, try_out
from rank_cases import Case
from test_missing_edges import without_order

from nestlab.pipeline import Key, Schedule, Shape, Stage, build
from nestlab.pipeline.derivation import WINDOW
from nestlab.pipeline.schedule import WHOLE
from nestlab.techniques import Techniques

pytestmark = pytest.mark.dist

SEEDS = 4
STEPS = 8
BUFFERS = "device_tier=dual_buffer,pipeline_depth=5,micro_batches=3"
SLOTS = "device_tier=slot_cache,cache_slots=1,pipeline_depth=5,micro_batches=3"
DIRECT = "pipeline_depth=5,micro_batches=3"
STALE = "staleness=1,pipeline_depth=3"
REPLICAS = "replica_groups=2,replica_every=3,device_tier=dual_buffer,pipeline_depth=4"
SEVERAL = 3  # micro-batches

# What is no longer ordered. (t+d,i): the batch and the micro-batch; what an edge is for stands in the table of edges.
MISSING = [
    (BUFFERS, "UPDATE(t-1) → COMMIT(t)"),  # no sync copy: the buffer misses the last update of what both batches have
    (BUFFERS, "WRITEBACK(t-2) → PREPARE(t)"),  # late write-back
    (BUFFERS, "WRITEBACK(t-1) → WRITEBACK(t)"),  # the older record lands last
    (BUFFERS, "COMMIT(t) → EMB_EXCHANGE(t,1)"),  # rows of a part read before the copy
    (BUFFERS, "GRAD_EXCHANGE(t,2) → UPDATE(t)"),  # before the last micro-batch
    (BUFFERS, "GRAD_EXCHANGE(t,0) → GRAD_EXCHANGE(t,1)"),  # added up in another order
    (BUFFERS, "BACKWARD(t,1) → BACKWARD(t,2)"),
    (BUFFERS, "GRAD_EXCHANGE(t,2) → CLIP(t)"),  # the norm of some of the gradients
    (BUFFERS, "CLIP(t) → UPDATE(t)"),
    (SLOTS, "UPDATE(t-2) → COMMIT(t)"),  # a victim's last update
    (SLOTS, "WRITEBACK(t-1) → PREPARE(t)"),
    (SLOTS, "UPDATE(t-1) → EMB_EXCHANGE(t,0)"),
    (DIRECT, "UPDATE(t-1) → EMB_EXCHANGE(t,2)"),
    (DIRECT, "UPDATE(t-1) → FORWARD(t,0)"),
    (STALE, "UPDATE(t-2) → EMB_EXCHANGE(t,0)"),  # more stale than asked for
    (STALE, "EMB_EXCHANGE(t+1,0) → UPDATE(t)"),  # less
    (REPLICAS, "RELEASE(t) → SYNC(t)"),
    (REPLICAS, "SYNC(t-1) → PREPARE(t)"),
    (REPLICAS, "SYNC(t-1) → EMB_EXCHANGE(t,0)"),
]


@cache
def built(techniques: str, clips: bool = True) -> Schedule:
    return build(Shape.of(Techniques.parse(techniques), clips=clips))


def key(text: str, batch: int) -> Key:
    stage, shift, part = re.fullmatch(r"([A-Z_0-9]+)\(t([+-]\d)?(?:,(\d))?\)", text).groups()
    return Key(Stage(stage), batch + int(shift or 0), WHOLE if part is None else int(part))


def without(schedule: Schedule, order: str) -> Schedule:
    """Required edges only, less those by which the one comes before the other."""
    source, target = order.split(" → ")
    there = {action.key for action in schedule.unroll(WINDOW)}
    pairs = [(key(source, batch), key(target, batch)) for batch in reversed(range(WINDOW))]
    fewer = without_order(schedule, *next(pair for pair in pairs if there.issuperset(pair)))  # SYNC: not in each batch
    assert len(fewer.edges) < len(schedule.required_only().edges)
    return fewer


def case_of(techniques: str, schedule: Schedule | None = None, clip: float | None = 0.5) -> Case:
    """Batches whose neighbours share keys, all of one size: replicas weigh the same."""
    return Case(techniques, steps=STEPS, clip=clip, schedule=schedule, whole=True)


def damages(ranks, trial: Trial, timeout_s: float = 120.0) -> list[str]:
    """Run by run, what either rank found wrong."""
    one, other = ranks.run(try_out, trial, timeout_s=timeout_s)
    return [a or b for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize(
    ("techniques", "order"), MISSING, ids=[f"{text.partition(',')[0]}: {o}" for text, o in MISSING]
)
def test_an_order_that_is_missing_does_damage(ranks, techniques, order):
    schedule = without(built(techniques), order)
    stage = key(order.split(" → ")[0], 0).stage
    orders = tuple(f"late:{seed}:{stage}" for seed in range(SEEDS))
    found = damages(ranks, Trial(case_of(techniques, schedule), orders))
    assert sum(map(bool, found)) >= SEEDS / 2, found


@pytest.mark.parametrize("techniques", [BUFFERS, SLOTS, DIRECT, STALE, REPLICAS])
def test_nothing_missing_does_no_damage(ranks, techniques):
    """The control: in the same orders what all required edges allow gives the bits of the plain loop."""
    orders = ("shuffled:0", "lanes", "late:1:UPDATE", "late:2:WRITEBACK", "late:3:GRAD_EXCHANGE", "late:4:BACKWARD")
    schedule = built(techniques).required_only()
    assert not any(damages(ranks, Trial(case_of(techniques, schedule), orders, (Stage.UPDATE, -2))))


@pytest.mark.parametrize(
    ("fault", "techniques"),
    [
        ("no commit", BUFFERS),
        ("no commit", SLOTS),
        ("local weight", ""),
        ("local weight", BUFFERS),
        ("other requester first", "micro_batches=3"),
        ("nothing accumulates", BUFFERS),
        ("own dense gradients", ""),
    ],
)
def test_a_fault_of_a_stage_does_damage(ranks, fault, techniques):
    found = damages(ranks, Trial(case_of(techniques), ("inline", "shuffled:1"), fault=fault))
    assert found == ["weights"] * 2 or ("no commit" in fault and all(found)), found


# What is missing, what is moved to a lane of its own, what is slow. The steps are planned one at a time: the copy
# could not come too early if it were not planned a batch ahead.
IN_LANES = [
    (BUFFERS, "UPDATE(t-1) → COMMIT(t)", Stage.COMMIT, (Stage.UPDATE, -2)),
    (BUFFERS, "WRITEBACK(t-2) → PREPARE(t)", None, (Stage.WRITEBACK, -2)),
    (BUFFERS, "GRAD_EXCHANGE(t,2) → UPDATE(t)", None, (Stage.GRAD_EXCHANGE, 2)),
    (BUFFERS, "COMMIT(t) → EMB_EXCHANGE(t,0)", None, (Stage.COMMIT, -2)),
    (BUFFERS, "FORWARD(t,1) → BACKWARD(t,1)", Stage.BACKWARD, (Stage.FORWARD, 1)),
    (BUFFERS, "GRAD_EXCHANGE(t,2) → CLIP(t)", None, (Stage.GRAD_EXCHANGE, 2)),
    (SLOTS, "COMMIT(t) → WRITEBACK(t)", None, (Stage.COMMIT, -2)),
    (SLOTS, "WRITEBACK(t-1) → PREPARE(t)", None, (Stage.WRITEBACK, -2)),
    (REPLICAS, "RELEASE(t) → SYNC(t)", None, (Stage.RELEASE, -2)),
]


@pytest.mark.parametrize(
    ("techniques", "order", "moved", "slow"),
    IN_LANES,
    ids=[f"{text.partition(',')[0]}: {o}" for text, o, *_ in IN_LANES],
)
def test_an_order_that_is_missing_does_damage_in_lanes(ranks, techniques, order, moved, slow):
    """Threads as they come: the stage to be waited for is made slow. On a loaded machine one run may escape."""
    schedule = without(built(techniques), order)
    schedule = schedule.on_lane(moved) if moved else schedule
    if moved is Stage.COMMIT:
        entries = (replace(each, ahead=1) if each.stage is moved else each for each in schedule.entries)
        schedule = replace(schedule, entries=tuple(entries))
    found = damages(ranks, Trial(case_of(techniques, schedule), ("lanes", "lanes"), slow))
    assert any(found), found


def test_what_a_lane_hides(ranks):
    """FORWARD and BACKWARD share a lane: with no edge between them nothing is seen, until one has a lane of its own."""
    schedule = without(built(BUFFERS), "FORWARD(t,1) → BACKWARD(t,1)")
    assert damages(ranks, Trial(case_of(BUFFERS, schedule), ("lanes",), (Stage.FORWARD, 1))) == [""]


def on_data(techniques: str) -> Schedule:
    """Required edges without those that only order collectives, which imply some of the others.

    They guard no data of one rank: every rank draws the same order here, and so they meet all the same. Two ranks whose
    lanes run at their own pace would not (tests/pipeline/test_collective_order.py).
    """
    schedule = built(techniques).required_only()
    return schedule.without(*(e for e in schedule.edges if e.reason.startswith("one order of collectives")))


GENERATED = [
    (techniques, edge) for techniques in (BUFFERS, SLOTS, DIRECT, STALE, REPLICAS) for edge in on_data(techniques).edges
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("techniques", "edge"), GENERATED, ids=[f"{text.partition(',')[0]}: {e}" for text, e in GENERATED]
)
def test_each_required_edge_does_damage_when_it_is_missing(ranks, techniques, edge):
    schedule = on_data(techniques).without(edge)
    orders = tuple(f"late:{seed}:{edge.source}" for seed in range(SEEDS))
    found = damages(ranks, Trial(case_of(techniques, schedule), orders))
    assert any(found), edge


@pytest.mark.slow
@pytest.mark.parametrize("techniques", [BUFFERS, SLOTS, DIRECT, STALE, REPLICAS])
def test_all_edges_on_data_do_no_damage(ranks, techniques):
    stages = ("UPDATE", "COMMIT", "WRITEBACK", "GRAD_EXCHANGE", "BACKWARD", "SYNC", "CLIP", "EMB_EXCHANGE")
    orders = tuple(f"late:{seed}:{stage}" for seed, stage in enumerate(stages))
    assert not any(damages(ranks, Trial(case_of(techniques, on_data(techniques)), orders)))


@pytest.mark.parametrize(("techniques", "looks_ahead"), [("", False), ("micro_batches=4", False), (BUFFERS, True)])
def test_plain_and_the_frozen_window_do_not_prefetch(ranks, techniques, looks_ahead):
    """By the trace of lanes on both ranks: no LOAD of a later batch has begun when UPDATE(t) ends."""
    for events in ranks.run(spans, case_of(techniques)):
        updates = {batch: end for stage, batch, _, end in events if stage == "UPDATE"}
        begun = {batch: start for stage, batch, start, _ in events if stage == "LOAD"}
        assert sorted(updates) == list(range(STEPS)) and set(begun) >= set(updates)
        early = [t for t, end in updates.items() if any(start < end for batch, start in begun.items() if batch > t)]
        assert bool(early) is looks_ahead, early
