"""Each required edge of tensor-train tables, taken away: the validator names it, a random order shows the damage."""

from __future__ import annotations

from functools import cache

import networkx as nx
import pytest
import torch
from rank_cases import global_batches
from test_missing_edges import Late, without_order
from tt_cases import Case, learnt, tt_model

from nestlab.pipeline import InvalidSchedule, Pipeline, Shape, Shuffled, build, validate
from nestlab.pipeline.derivation import WINDOW, plain_order, required_pairs
from nestlab.pipeline.edges import table, table_pairs
from nestlab.pipeline.shape import BY_GROUP

SHAPE = Shape(table_groups=2)
REPLICATED = Shape(table_groups=1, replicated_cores=True, clips=True)
CASE = Case("table_groups=2", kinds="rtt", steps=6)
SEEDS = 12


def of_tables(shape: Shape) -> list:
    return [row for row in table(shape) if row.source in BY_GROUP or row.target in BY_GROUP]


def result(schedule, executor) -> dict[str, bytes]:
    model = tt_model(CASE, [])
    pipeline = Pipeline(
        model,
        torch.optim.Adam(model.dense.parameters(), lr=0.01),
        CASE.flags,
        schedule=schedule,
        executor=executor,
    )
    list(pipeline.run(global_batches(CASE)))
    return {name: value.numpy().tobytes() for name, value in learnt(model).items()}


@cache
def reference() -> dict[str, bytes]:
    return result(build(SHAPE), Shuffled(0))


@pytest.mark.parametrize("template", of_tables(SHAPE), ids=str)
def test_missing_edge_is_rejected_and_does_damage(template):
    schedule = build(SHAPE)
    source, target = table_pairs(schedule, [template], WINDOW)[-1]
    broken = without_order(schedule, source, target)
    with pytest.raises(InvalidSchedule) as refused:
        validate(broken, SHAPE.accesses)
    assert any(problem.startswith(f"required edge missing: {source.stage}(") for problem in refused.value.problems)
    assert any(damaged(broken, Late(seed, source.stage)) for seed in range(SEEDS))


def damaged(schedule, executor) -> bool:
    try:
        return result(schedule, executor) != reference()
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError, KeyError, AssertionError, StopIteration):
        return True  # a stage found its input missing: the loudest kind of damage


def test_nothing_taken_away_does_no_damage():
    for seed in range(4):
        assert not damaged(build(SHAPE).required_only(), Shuffled(seed))


@pytest.mark.parametrize("template", [row for row in of_tables(REPLICATED) if row not in of_tables(SHAPE)], ids=str)
def test_missing_edge_of_replicated_cores_is_rejected(template):
    schedule = build(REPLICATED)
    source, target = table_pairs(schedule, [template], WINDOW)[-1]
    with pytest.raises(InvalidSchedule):
        validate(without_order(schedule, source, target), REPLICATED.accesses)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(table_groups=3, clips=True),
        Shape("dual_buffer", 5, table_groups=2, micro_batches=2),
        Shape("slot_cache", 6, split=True, table_groups=1),
        REPLICATED,
    ],
    ids=["groups", "dual_buffer", "split", "replicated"],
)
def test_table_and_derivation_imply_each_other(shape):
    schedule = build(shape)
    derived = required_pairs(plain_order(schedule.entries, WINDOW), shape.accesses)
    by_hand = table_pairs(schedule, table(shape), WINDOW)
    assert set(derived) <= set(nx.transitive_closure_dag(nx.DiGraph(by_hand)).edges)
    assert set(by_hand) <= set(nx.transitive_closure_dag(nx.DiGraph(derived)).edges)
