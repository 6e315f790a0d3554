"""Rows out, gradients back, and their sum at the owner: against dense tables in float64, and to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_transport import FakeTransport, FakeWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import layout, occurrences, worlds

from nestlab.embedding import embed, route
from nestlab.exchange import (
    Channel,
    LocalTransport,
    Mesh,
    PartPlan,
    Router,
    accumulate,
    bytes_leaving,
    codec,
    exchange_grads,
    exchange_rows,
    plain_width,
)
from nestlab.exchange.rows import sum_by_key

LAYOUT = layout()


def row_of(group: int, table: int, key: int, dim: int) -> torch.Tensor:
    """[dim] small whole numbers that tell keys apart."""
    return torch.tensor([(key * 7 + table * 3 + group + 5 * c) % 101 - 50.0 for c in range(dim)], dtype=torch.float64)


def rows_of(group: int, dim: int, keys) -> torch.Tensor:
    tables = keys.tables(np.arange(len(keys))).tolist()
    rows = [row_of(group, table, key, dim) for table, key in zip(tables, keys.ids.tolist(), strict=True)]
    return torch.stack(rows) if rows else torch.zeros(0, dim, dtype=torch.float64)


def upstream(embedded: torch.Tensor, rank: int, part: int) -> torch.Tensor:
    """Whole-numbered gradients of pooled rows, another for each place."""
    return (torch.arange(embedded.numel(), dtype=torch.float64) * 3 + rank + part).remainder(11).view_as(embedded)


def train_once(transport: FakeTransport, batch, parts: int):
    """Pooled rows of every part, and per group the owner's keys and summed gradients."""
    routed = Router(LAYOUT, transport, parts).route(batch)
    tables = [rows_of(g, group.dim, routed.owned[g]) for g, group in enumerate(LAYOUT.groups)]
    sums = [torch.zeros_like(table) for table in tables]
    pooled = []
    for part, micro in enumerate(batch.micro_batches(parts)):
        for g, plan in enumerate(routed.plans[part]):
            sent = tables[g] if plan.places is None else tables[g][plan.places]
            rows = exchange_rows(transport, sent, plan).clone().requires_grad_()
            keys = routed.parts[part][g]
            bags = embed([rows], [keys], micro.size).stack(keys.features)
            pooled.append(bags.detach())
            (bags * upstream(bags, transport.mesh.rank, part)).sum().backward()
            grads = torch.zeros_like(rows) if rows.grad is None else rows.grad
            accumulate(sums[g], plan, exchange_grads(transport, grads, plan))
    return pooled, [(routed.owned[g], sums[g]) for g in range(len(LAYOUT.groups))]


@settings(max_examples=30, deadline=None)
@given(worlds(), st.integers(1, 9))
def test_rows_and_gradients_equal_a_dense_reference(world, parts):
    """Whole numbers in float64: equal, not nearly. Over every mesh, part and ragged batch.

    Broken on purpose, each made this fail: `accumulate` that overwrites; gradients sent with the counts of the rows;
    places of the whole batch for each part.
    """
    (ranks, replicas), given_batches = world
    shards = ranks // replicas
    results = FakeWorld(ranks, replicas).run(lambda t: train_once(t, given_batches[t.mesh.rank], parts))
    expected: dict[tuple[int, int, int, int], torch.Tensor] = {}  # (replica, group, table, id) → gradient
    for rank, batch in enumerate(given_batches):
        pooled = iter(results[rank][0])
        for part, micro in enumerate(batch.micro_batches(parts)):
            for g, group in enumerate(LAYOUT.groups):
                bags = next(pooled)
                reference = dense(rank // shards, rank, part, micro, g, group, bags, expected)
                assert torch.equal(bags, reference)
    got = {
        (rank // shards, g, table, key): row
        for rank, (_, of_groups) in enumerate(results)
        for g, (keys, sums) in enumerate(of_groups)
        for table, key, row in zip(keys.tables(np.arange(len(keys))).tolist(), keys.ids.tolist(), sums, strict=True)
    }
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in got)


def dense(replica, rank, part, micro, g, group, bags, grads) -> torch.Tensor:
    """The pooled rows of a micro-batch, id by id; adds each id's gradient to `grads`."""
    result, up = torch.zeros_like(bags), upstream(bags, rank, part)
    keys = route(micro, LAYOUT)[g]
    weights = [1.0] * keys.positions.numel() if keys.id_weights is None else keys.id_weights.tolist()
    ends = np.cumsum(keys.lengths.numpy())
    for n, (table, key, sample) in enumerate(occurrences(micro, group)):
        feature = int(np.searchsorted(ends, n, side="right")) // micro.size
        result[sample, feature] += weights[n] * row_of(g, table, key, group.dim)
        place = (replica, g, table, key)
        grads[place] = grads.get(place, torch.zeros(group.dim).double()) + weights[n] * up[sample, feature]
    return result


def test_one_shard_without_codec_is_the_tensor_itself():
    rows, plan = torch.rand(3, 2), PartPlan(None, (3,), (3,))
    assert exchange_rows(LocalTransport(), rows, plan) is rows
    assert exchange_grads(LocalTransport(), rows, plan) is rows


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("shards", [1, 2])
def test_with_a_codec_a_row_reads_alike_on_every_rank(name, shards):
    """The own shard's rows too. Broken on purpose: a codec passed by on one shard made this fail."""
    rows, coder = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)), codec(name)
    plan = PartPlan(None, (4,) * shards, (4,) * shards)
    results = FakeWorld(shards).run(lambda t: exchange_rows(t, rows.repeat(shards, 1), plan, coder))
    read = coder.decode(coder.encode(rows), 5, torch.float32)
    assert not torch.equal(read, rows)
    for result in results:
        assert torch.equal(result, read.repeat(shards, 1))


def test_rows_that_are_not_the_plans_are_refused():
    with pytest.raises(ValueError, match="2 rows for a plan of 3"):
        exchange_rows(LocalTransport(), torch.rand(2, 2), PartPlan(None, (3,), (3,)))


def add_in_order(acc: torch.Tensor, places, grads: torch.Tensor) -> torch.Tensor:
    for place, grad in zip(places, grads, strict=True):
        acc[place] = acc[place] + grad
    return acc


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_taken_in_the_order_of_the_requesters(dtype):
    """To the bit, though rounding depends on the order. Broken on purpose: a loop from the last row to the first."""
    generator = torch.Generator().manual_seed(3)
    places = np.random.default_rng(3).integers(0, 20, 200)
    grads = torch.randn(200, 7, generator=generator, dtype=dtype) * 10 ** torch.randn(200, 1, generator=generator)
    grads = grads.to(dtype)
    acc = torch.randn(20, 7, generator=generator, dtype=dtype)
    expected = add_in_order(acc.clone(), places.tolist(), grads)
    assert not torch.equal(add_in_order(acc.clone(), places[::-1].tolist(), grads.flip(0)), expected)
    accumulate(acc, PartPlan(places, (200,), (0,)), grads)
    assert torch.equal(acc, expected)


def test_sorted_segment_sums_are_sums_by_key():
    """What runs on an accelerator, here on the host: each key's sum from zero, in order; keys without rows get 0.

    Broken on purpose: a sort that turns the order within a key round made this fail.
    """
    places = np.random.default_rng(5).integers(0, 30, 200)
    grads = torch.randn(200, 7, generator=torch.Generator().manual_seed(5))
    assert torch.equal(sum_by_key(grads, places, 40), add_in_order(torch.zeros(40, 7), places.tolist(), grads))
    assert torch.equal(sum_by_key(grads[:0], places[:0], 2), torch.zeros(2, 7))


def test_all_keys_in_order_need_no_places():
    acc = torch.ones(3, 2)
    accumulate(acc, PartPlan(None, (3,), (3,)), torch.full((3, 2), 2.0))
    assert torch.equal(acc, torch.full((3, 2), 3.0))


@pytest.mark.parametrize("grads", [torch.zeros(2, 2), torch.zeros(3, 2, dtype=torch.float64)])
def test_gradients_of_another_shape_or_dtype_are_refused(grads):
    """A kernel would read on beyond them."""
    for places in (None, np.array([0, 1, 2])):
        with pytest.raises(ValueError, match="accumulate"):
            accumulate(torch.zeros(3, 2), PartPlan(places, (3,), (3,)), grads)


def test_bytes_that_leave_are_those_for_other_shards():
    plan, width = PartPlan(np.arange(6), (1, 2, 3), (4, 5, 6)), plain_width(8, torch.float32)
    assert width == 32
    assert bytes_leaving(plan, width, Mesh(1, 3)) == (4 * 32, 10 * 32)
    assert bytes_leaving(plan, width, Mesh(4, 6, 2)) == (4 * 32, 10 * 32)  # the second replica group's shard 1
    assert bytes_leaving(PartPlan(None, (3,), (3,)), width, Mesh()) == (0, 0)


def test_what_leaves_one_rank_arrives_at_another():
    def work(transport: FakeTransport):
        routed = Router(LAYOUT, transport, 2).route(batches[transport.mesh.rank])
        return [bytes_leaving(plan, 1, transport.mesh) for part in routed.plans for plan in part]

    from test_routing import some_batch

    batches = [some_batch(9, seed) for seed in range(3)]
    per_rank = FakeWorld(3).run(work)
    for of_ranks in zip(*per_rank, strict=True):
        assert sum(leaving.rows for leaving in of_ranks) == sum(leaving.grads for leaving in of_ranks) > 0


def test_rows_travel_on_their_own_channel():
    def work(transport: FakeTransport):
        plan = PartPlan(np.zeros(2, np.int64), (1, 1), (1, 1))
        exchange_grads(transport, exchange_rows(transport, torch.rand(2, 3), plan), plan)
        return dict(transport.calls)

    assert FakeWorld(2).run(work) == [{(Channel.ROWS, "all_to_all"): 2}] * 2
