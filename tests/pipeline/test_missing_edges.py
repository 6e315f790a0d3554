"""Every template of the edge table, taken away: the validator names it, and a random order makes the damage seen."""

from __future__ import annotations

import networkx as nx
import pytest
from tiny import make_batches, train, weights_of

from nestlab.pipeline import InvalidSchedule, Key, Schedule, Shape, Shuffled, build, validate
from nestlab.pipeline.accesses import direct_accesses
from nestlab.pipeline.edges import WINDOW, table, table_pairs
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core
SEEDS = 20


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


@pytest.fixture(scope="module")
def reference():
    model, _ = train(make_batches(8))
    return weights_of(model)


@pytest.mark.parametrize("template", table(Shape()), ids=str)
def test_missing_edge_is_rejected_and_does_damage(template, reference):
    schedule = build(Techniques())
    source, target = table_pairs(schedule, [template], WINDOW)[-1]
    broken = without_order(schedule, source, target)

    with pytest.raises(InvalidSchedule) as refused:
        validate(broken, direct_accesses)
    assert any(problem.startswith(f"required edge missing: {source.stage}(") for problem in refused.value.problems)

    assert any(_damaged(broken, seed, reference) for seed in range(SEEDS))


def _damaged(schedule: Schedule, seed: int, reference: list[bytes]) -> bool:
    try:
        model, _ = train(make_batches(8), schedule=schedule, executor=Shuffled(seed))
    except RuntimeError:  # a stage found its input missing, or a row released: the loudest kind of damage
        return True
    return weights_of(model) != reference


def test_the_whole_set_of_required_edges_does_no_damage(reference):
    """The control: with nothing taken away no seed differs, so what the tests above see is the missing edge."""
    schedule = build(Techniques()).required_only()
    assert not any(_damaged(schedule, seed, reference) for seed in range(SEEDS))
