"""Tables placed whole: ids to owners, pooled rows and gradients back, against dense tables a sample at a time."""

from __future__ import annotations

import numpy as np
import torch
from fake_transport import FakeTransport, FakeWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import FEATURES, IDS, of_feature

from nestlab.batch import Batch
from nestlab.embedding import TableConfig
from nestlab.exchange.table_wise import (
    Placement,
    TableRouter,
    exchange_pooled,
    exchange_pooled_grads,
)

TABLES = (  # features of one table apart in the batch, in another order there; "friends" is nobody's here
    TableConfig("user", 3, ("w", "i")),
    TableConfig("item", 2, ("u",), pooling="none"),
    TableConfig("word", 5, ("d",), pooling="mean"),
)
NAMES = (*FEATURES, "d")


@st.composite
def batches(draw, max_size: int = 4) -> Batch:
    """0 … max_size samples, 0 … 3 ids a feature (rarely 300: lengths of more than a byte), with weights or without."""
    size = draw(st.integers(0, max_size))
    bags = draw(st.lists(st.lists(IDS, max_size=3), min_size=len(NAMES) * size, max_size=len(NAMES) * size))
    if bags and draw(st.integers(0, 5)) == 0:
        bags[draw(st.integers(0, len(bags) - 1))] = [7] * 300
    ids = [i for bag in bags for i in bag]
    weights = torch.arange(len(ids), dtype=torch.float32).remainder(5) - 1
    return Batch(
        dense=torch.zeros(size, 1),
        features=NAMES,
        ids=torch.tensor(ids, dtype=torch.int64),
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
        labels=torch.zeros(size),
        weights=torch.arange(size, dtype=torch.float32) if draw(st.booleans()) else None,
        id_weights=weights if draw(st.booleans()) else None,
    )


@st.composite
def placements(draw, ranks: int) -> Placement:
    """Any owners, any groups in any order."""
    owner = draw(st.lists(st.integers(0, ranks - 1), min_size=len(TABLES), max_size=len(TABLES)))
    order = draw(st.permutations(range(len(TABLES))))
    cuts = sorted(draw(st.sets(st.integers(1, len(TABLES) - 1))))
    bounds = [0, *cuts, len(TABLES)]
    return Placement(tuple(owner), tuple(tuple(order[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)))


@st.composite
def worlds(draw) -> tuple[list[Batch], list[bool], Placement]:
    ranks = draw(st.integers(1, 3))
    made = [draw(batches()) for _ in range(ranks)]
    present = [batch.size > 0 or draw(st.booleans()) for batch in made]
    return made, present, draw(placements(ranks))


def row(table: int, key: int) -> torch.Tensor:
    """[dim] whole numbers that tell tables and ids apart."""
    dim = TABLES[table].dim
    return torch.tensor([float((key * 7 + table * 3 + 5 * c) % 101 - 50) for c in range(dim)], dtype=torch.float64)


def looked_up(table: int, ids: list[int]) -> torch.Tensor:
    rows = [row(table, key) for key in ids]
    return torch.stack(rows) if rows else torch.zeros(0, TABLES[table].dim, dtype=torch.float64)


def look_up(table: int, bags: list[list[int]], weights: list[list[float]] | None) -> torch.Tensor:
    """The output for bags, bag by bag: pooled rows, or each row."""
    dim, pooling, out = TABLES[table].dim, TABLES[table].pooling, []
    for n, bag in enumerate(bags):
        rows = looked_up(table, bag)
        if pooling == "none":
            out.append(rows)
            continue
        w = torch.ones(len(bag)) if weights is None or pooling == "mean" else torch.tensor(weights[n])
        total = (rows * w.double().unsqueeze(1)).sum(dim=0) if bag else torch.zeros(dim).double()
        out.append(total.unsqueeze(0) / (max(len(bag), 1) if pooling == "mean" else 1))
    return torch.cat(out) if out else torch.zeros(0, dim, dtype=torch.float64)


def cut(values: list, lengths: list[int]) -> list[list]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [values[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def weights_of(batch: Batch, feature: str) -> list[list[float]] | None:
    if batch.id_weights is None:
        return None
    at = batch.features.index(feature) * batch.size
    return cut(batch.id_weights.tolist(), batch.lengths.tolist())[at : at + batch.size]


def upstream(feature: str, like: torch.Tensor, rank: int) -> torch.Tensor:
    count = torch.arange(like.numel(), dtype=torch.float64)
    return (count * 3 + 7 * rank + NAMES.index(feature)).remainder(11).view_as(like)


def step(transport: FakeTransport, batch: Batch, present: bool, placement: Placement):
    """What came to this rank by feature, what it routed, and the gradients of its tables' outputs by table."""
    routed = TableRouter(TABLES, transport, placement, torch.float64).route(batch, present)
    came, grads = {}, {}
    for group, owned in enumerate(routed.owned):
        outputs = []
        for bags in owned:
            weights = None if bags.id_weights is None else cut(bags.id_weights.tolist(), bags.lengths.tolist())
            outputs.append(look_up(bags.table, cut(bags.ids.tolist(), bags.lengths.tolist()), weights))
        of_group = exchange_pooled(transport, routed, group, outputs)
        came |= of_group
        ups = {f: upstream(f, rows, transport.mesh.rank) for f, rows in of_group.items() if f != "i"}
        back = exchange_pooled_grads(transport, routed, group, ups)
        grads |= {bags.table: grad for bags, grad in zip(owned, back, strict=True)}
    return routed, came, grads


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_rows_and_gradients_equal_a_look_up_at_home(world):
    """Whole numbers in float64, equal and not nearly, over every placement, uneven and empty batches."""
    made, present, placement = world
    results = FakeWorld(len(made)).run(lambda t: step(t, made[t.mesh.rank], present[t.mesh.rank], placement))
    for rank, (batch, (routed, came, _)) in enumerate(zip(made, results, strict=True)):
        assert routed.present == any(present)
        assert routed.weight == sum(batch.total_weight for batch in made)
        assert {t for group in routed.owned for t in (b.table for b in group)} == set(placement.of_rank(rank))
        for number, table in enumerate(TABLES):
            for feature in table.features:
                expected = look_up(number, of_feature(batch, feature), weights_of(batch, feature))
                assert torch.equal(came[feature], expected), feature
    for number, table in enumerate(TABLES):
        grad = results[placement.owner[number]][2][number]
        pieces = [
            upstream(f, came[f], rank) if f != "i" else torch.zeros_like(came[f])
            for rank, (_, came, _) in enumerate(results)
            for f in table.features
        ]
        assert torch.equal(grad, torch.cat(pieces))
