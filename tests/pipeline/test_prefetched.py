"""Prefetching moves work in time and changes no bit: every tier, depth and executor against the plain loop."""

from __future__ import annotations

from functools import cache

import pytest
from tiny import make_batches, make_model, make_pipeline, tiers_for, weights_of

from nestlab.embedding import Tiers
from nestlab.embedding.features.rules import FeatureRules
from nestlab.errors import UserError
from nestlab.pipeline import Inline, Lanes, Shape, Shuffled, Stage, build
from nestlab.pipeline.articles import ARTICLE_STAGES, article_stage, describe
from nestlab.techniques import values
from nestlab.tracing import Recorder

pytestmark = pytest.mark.core

SHAPES = {
    "direct": Shape("direct", 5),
    "dual_buffer": Shape("dual_buffer", 5),
    "dual_buffer, two deep": Shape("dual_buffer", 2),
    "dual_buffer, split, evicts": Shape("dual_buffer", 6, evicts=True, split=True),
    "slot_cache": Shape("slot_cache", 5),
    "slot_cache, two deep, evicts": Shape("slot_cache", 2, evicts=True),
    "slot_cache, split": Shape("slot_cache", 6, split=True),
    "slot_cache, split, evicts, oracle": Shape("slot_cache", 6, evicts=True, foresees=True, split=True),
}
EXECUTORS = {"inline": Inline, "shuffled 0": lambda: Shuffled(0), "shuffled 1": lambda: Shuffled(1, 8), "lanes": Lanes}


@cache
def batches():
    return make_batches(24, distinct=24)


@cache
def plain(evicts: bool) -> tuple[list[float], list[bytes]]:
    """What `Direct` learns in one thread, one batch at a time."""
    shape = Shape(evicts=evicts)
    return learnt(shape, Inline())[:2]


def learnt(shape: Shape, executor, policy: str = "clock", rules: FeatureRules | None = None):
    """Losses, weights and states, and the store, after two passes with an evaluation in between."""
    model = make_model(tiers=tiers_for(shape, batches(), policy, rules))
    pipeline = make_pipeline(model, schedule=build(shape), executor=executor)
    losses = []
    for part in (batches()[:15], batches()[15:]):
        losses += [float(output.loss) for output in pipeline.run(part)]
        pipeline.evaluate(make_batches(2, seed=8, distinct=40))
    return losses, weights_of(model), model.embedding


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", SHAPES)
def test_bit_equal_to_plain(name, executor):
    shape = SHAPES[name]
    losses, weights, store = learnt(shape, EXECUTORS[executor]())
    assert (losses, weights) == plain(shape.evicts)
    counters = store.counters
    if shape.tier != "direct":
        assert counters.hits > 0 and counters.misses > 0 and counters.writebacks > 0 and counters.bytes_out > 0
    assert (counters.evicted > 0) == shape.evicts


@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name].evicts])
def test_admission_and_scores_depend_on_the_batches_alone(name):
    """Ids come in at their second show and go by score: the same ones, with the same weights, in every order."""
    rules = {"admit": "count", "admit_threshold": 2, "evict": "score", "evict_share": 0.3}
    losses, weights, store = learnt(Shape(evicts=True), Inline(), rules=FeatureRules(**rules))
    assert store.counters.refused > 0 and store.counters.evicted > 0
    for executor in (Shuffled(3), Lanes()):
        found = learnt(SHAPES[name], executor, rules=FeatureRules(**rules))
        assert found[:2] == (losses, weights)
        for counter in ("known", "inserts", "refused", "evicted"):
            assert getattr(found[2].counters, counter) == getattr(store.counters, counter)


@pytest.mark.parametrize("policy", [policy for policy in values("cache_policy") if policy != "oracle"])
def test_what_a_plan_decides_depends_on_the_batches_alone(policy):
    """Hits, misses and write-backs are those of the plain loop, however far ahead and in which order plans are made."""
    split = Shape("slot_cache", 6, split=True)
    runs = [(Shape("slot_cache"), Inline()), (Shape("slot_cache", 5), Lanes()), (split, Lanes()), (split, Shuffled(5))]
    found = [learnt(shape, executor, policy)[2].counters.as_dict() for shape, executor in runs]
    assert all(counters == found[0] for counters in found)


@pytest.mark.parametrize("tier", ["dual_buffer", "slot_cache"])
def test_bytes_of_a_move_stand_in_its_event(tier):
    shape = Shape(tier, 5)
    model = make_model(tiers=tiers_for(shape, batches()))
    pipeline = make_pipeline(model, schedule=build(shape), recorder=Recorder())
    list(pipeline.run(batches()))
    moved = dict.fromkeys(Stage, 0)
    for event in pipeline.trace().events:
        moved[Stage(event.stage)] += event.nbytes
    counters = model.embedding.counters
    assert moved[Stage.PREPARE] == counters.bytes_in > 0
    assert moved[Stage.WRITEBACK] == counters.bytes_out > 0
    buffers = pipeline.memory(pipeline.trace()).set_index("kind")["peak_bytes"]["buffers"]
    assert buffers >= model.embedding.device_bytes - 10_000 and buffers > 0


def test_a_schedule_for_another_tier_is_refused_in_one_line():
    model = make_model(tiers=Tiers("dual_buffer"))
    with pytest.raises(
        UserError, match="made for device_tier=direct, and the store has dual_buffer; give both the same"
    ):
        make_pipeline(model)
    evicting = make_model(tiers=tiers_for(Shape(evicts=True), []))
    with pytest.raises(UserError, match="the store has evict=age, the schedule is made for none"):
        make_pipeline(evicting)


@pytest.mark.parametrize("preset", ARTICLE_STAGES)
def test_every_stage_has_one_name_in_the_article(preset):
    named = [stage for _, stages in ARTICLE_STAGES[preset] for stage in stages]
    assert sorted(named) == sorted(Stage)
    assert set(article_stage(preset)) == set(Stage)


def test_articles_stages_of_their_schedules():
    """RecSDK's six and JD's five are all there, each a batch apart where the article pipelines them."""
    shapes = {"recsdk": Shape("slot_cache", 6, split=True), "jd": Shape("slot_cache", 5)}
    for preset, count in (("recsdk", 6), ("jd", 5)):
        schedule = build(shapes[preset])
        named = describe(preset, [entry.stage for entry in schedule.entries])
        assert len(named) == count and sum(len(stages) for _, stages in named) == len(schedule.entries)
    ahead = {entry.stage: entry.ahead for entry in build(shapes["recsdk"]).entries}
    assert [max(ahead[stage] for stage in stages) for _, stages in describe("recsdk", list(ahead))] == [
        5,
        4,
        3,
        2,
        1,
        0,
    ]
