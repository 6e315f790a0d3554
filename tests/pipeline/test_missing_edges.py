"""Every template of the edge tables, taken away: the validator names it, and a random order makes the damage seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import networkx as nx
import pytest
from tiny import make_batches, make_model, tiers_for, train, weights_of

from nestlab.models import RecModel
from nestlab.pipeline import Action, InvalidSchedule, Key, Schedule, Shape, Shuffled, Stage, build, validate
from nestlab.pipeline.derivation import WINDOW
from nestlab.pipeline.edges import table, table_pairs

pytestmark = pytest.mark.core
SEEDS = 20
BATCHES = 10
SHAPES = {
    "direct": Shape(),
    "dual_buffer": Shape("dual_buffer"),
    "slot_cache": Shape("slot_cache"),
    "direct, split": Shape(evicts=True, split=True),
    "dual_buffer, split": Shape("dual_buffer", evicts=True, split=True),
    "slot_cache, split": Shape("slot_cache", evicts=True, foresees=True, split=True),
}


def without_order(schedule: Schedule, source: Key, target: Key) -> Schedule:
    """Required edges only, less those by which `source` comes before `target`, for this and every other batch.

    An edge of the table that others imply has no edge of its own to drop; what leads from its source to its target
    goes then.
    """
    loose = schedule.required_only()
    graph = nx.DiGraph(loose.pairs(WINDOW))
    dropped = [
        edge
        for edge in loose.edges
        for step in graph.successors(source)
        if edge in loose._into[(step.stage, step.part)] and edge.source_of(step) == source
        if step == target or nx.has_path(graph, step, target)
    ]
    return loose.without(*dropped)


@cache
def batches():
    """Keys that neighbours share, keys that skip a batch, and keys that leave and come back."""
    return make_batches(BATCHES, distinct=24)


def model_of(name: str) -> RecModel:
    return make_model(tiers=tiers_for(SHAPES[name], batches()))


@cache
def reference(name: str) -> list[bytes]:
    return weights_of(train(batches(), model_of(name), schedule=build(SHAPES[name]))[0])


class Late(Shuffled):
    """A random order that puts one stage off as long as anything else may run: few seeds show what needs it."""

    def __init__(self, seed: int, stage: Stage) -> None:
        super().__init__(seed, WINDOW)
        self._stage = stage

    def pick(self, ready: list[int], waiting: list[Action]) -> int:
        others = [i for i in ready if waiting[i].key.stage is not self._stage]
        return super().pick(others or ready, waiting)


def cases():
    """What concerns every tier is tried with `direct`, the rows of a tier with that tier."""
    found = []
    for name, shape in SHAPES.items():
        common = table(replace(shape, tier="direct", foresees=False)) if shape.tier != "direct" else ()
        found += [pytest.param(name, row, id=f"{name}: {row}") for row in table(shape) if row not in common]
    return found


@pytest.mark.parametrize(("name", "template"), cases())
def test_missing_edge_is_rejected_and_does_damage(name, template):
    shape = SHAPES[name]
    schedule = build(shape)
    source, target = table_pairs(schedule, [template], WINDOW)[-1]
    broken = without_order(schedule, source, target)

    with pytest.raises(InvalidSchedule) as refused:
        validate(broken, shape.accesses)
    assert any(problem.startswith(f"required edge missing: {source.stage}(") for problem in refused.value.problems)

    assert any(_damaged(name, broken, Late(seed, source.stage)) for seed in range(SEEDS))


def _damaged(name: str, schedule: Schedule, executor: Shuffled) -> bool:
    model, expected = model_of(name), reference(name)
    try:
        train(batches(), model, schedule=schedule, executor=executor)
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError, AssertionError):
        return True  # a stage found its input missing, or a row released: the loudest kind of damage
    return weights_of(model) != expected


@pytest.mark.parametrize("name", SHAPES)
def test_the_whole_set_of_required_edges_does_no_damage(name):
    """The control: with nothing taken away no seed differs, so what the tests above see is the missing edge."""
    schedule = build(SHAPES[name]).required_only()
    put_off = [Stage.ROUTE, Stage.COMMIT, Stage.EMB_EXCHANGE, Stage.UPDATE, Stage.WRITEBACK]
    assert not any(_damaged(name, schedule, Shuffled(seed, WINDOW)) for seed in range(4))
    assert not any(_damaged(name, schedule, Late(seed, stage)) for seed, stage in enumerate(put_off))
