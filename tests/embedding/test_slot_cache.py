"""The slot cache on its own: what moves, when, and what does not. Equality with `Direct` is test_tiers_equal's."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from nestlab.embedding import (
    OPTIMIZERS,
    EmbeddingStore,
    KeySet,
    StepInfo,
    TableConfig,
    Tiers,
    optimizer,
    optimizers_torch,
)
from nestlab.embedding.device.swap import CacheTooSmall
from nestlab.embedding.features import FeatureRules
from nestlab.errors import UserError
from nestlab.exchange.link import Link, LinkModel

pytestmark = pytest.mark.core

POLICIES = ("clock", "lru", "lfu", "oracle")
DIM = 4


def make(slots: float, policy: str = "lru", **options) -> EmbeddingStore:
    tiers = Tiers(device_tier="slot_cache", cache_slots=slots, cache_policy=policy, **options)
    return EmbeddingStore([TableConfig("t", DIM)], optimizer("adagrad", lr=0.1), seed=1, tiers=tiers)


def keys(*ids: int, counts: bool = False) -> list[KeySet]:
    count = np.ones(len(ids), dtype=np.int64)
    return [KeySet(np.array(ids, dtype=np.int64), [0, len(ids)], *((count, count * 1.0) if counts else ()))]


def step(store: EmbeddingStore, batch: list[KeySet], number: int):
    """One whole batch in the plain order; gradients are ones."""
    held = store.prepare(batch)
    store.commit(held)
    rows = store.gather(held, 0)
    store.apply(held, [torch.ones_like(rows)], StepInfo(number))
    store.writeback(held)
    plan = held.groups[0].work.plan
    store.release(held)
    return plan


def host_weight(store: EmbeddingStore, identity: int) -> torch.Tensor:
    """What the host tier below the cache holds, be it old."""
    host = store.hosts[0]
    return host.memory.copy(host.find(keys(identity)[0]))[0, :DIM]


def test_a_resident_row_is_newer_than_its_host_record_until_it_leaves():
    """Broken on purpose: the scatter of swap-ins before the gather of swap-outs in `commit`."""
    store = make(4)
    initial = store.full_weight("t", np.array([1]))
    step(store, keys(1, 2), 1)
    trained = store.full_weight("t", np.array([1]))
    assert not torch.equal(trained, initial)
    assert torch.equal(host_weight(store, 1), initial[0])
    step(store, keys(3, 4), 2)
    plan = step(store, keys(5, 6), 3)
    assert plan.out_slots.tolist() == plan.in_slots.tolist() == [0, 1]  # the same slots, both ways in one commit
    assert torch.equal(host_weight(store, 1), trained[0])
    assert torch.equal(store.full_weight("t", np.array([1])), trained)
    counted = store.counters
    assert (counted.hits, counted.misses, counted.writebacks) == (0, 6, 2)
    assert counted.bytes_in == 3 * counted.bytes_out == 6 * 2 * DIM * 4


def test_flush_brings_every_resident_row_down_and_keeps_it():
    store = make(6)
    step(store, keys(1, 2, 3), 1)
    step(store, keys(4), 2)
    newest = store.full_weight("t", np.array([1, 2, 3, 4]))
    store.flush()
    assert all(torch.equal(host_weight(store, i), newest[i - 1]) for i in range(1, 5))
    assert step(store, keys(1, 2, 3, 4), 3).hits == 4
    assert store.counters.writebacks == 0


@pytest.mark.parametrize(
    ("policy", "slots", "stream"),
    [("clock", 3, ((1, 2), (3,), (1,), (4,))), ("lfu", 4, ((1, 2), (1, 2), (3, 4), (5,)))],
)
def test_a_swap_may_be_made_before_the_batch_ahead_of_it_is_updated(policy, slots, stream):
    """Hazard 1: commit of t, and write-back of its victims, before the update of t − 1. Each stream ends in a batch for
    which the policy alone would choose a row of t − 1. Broken on purpose: last use < now in the policies."""
    plain, early = make(slots, policy), make(slots, policy)
    ahead = None
    for number, ids in enumerate(stream, 1):
        step(plain, keys(*ids), number)
        held = early.prepare(keys(*ids))
        early.commit(held)
        early.writeback(held)
        if ahead is not None:
            _update(early, ahead, number - 1)
        ahead = held
    _update(early, ahead, len(stream))
    assert plain.counters.writebacks == early.counters.writebacks > 0
    ids = np.arange(1, 7)
    assert torch.equal(plain.full_weight("t", ids), early.full_weight("t", ids))


def _update(store: EmbeddingStore, held, number: int) -> None:
    rows = store.gather(held, 0)
    store.apply(held, [torch.ones_like(rows)], StepInfo(number))
    store.release(held)


@pytest.mark.parametrize("policy", POLICIES)
def test_exactly_the_size_needed_works_and_one_slot_less_is_refused_without_a_trace(policy):
    """Must-hold 2. Broken on purpose: `require_room` only when a group is planned, after others were."""
    tables = [TableConfig("t", DIM), TableConfig("u", 2 * DIM)]

    def two(slots: int) -> EmbeddingStore:
        tiers = Tiers(device_tier="slot_cache", cache_slots=slots, cache_policy=policy)
        return EmbeddingStore(tables, optimizer("sgd", lr=1.0), tiers=tiers)

    def told(store: EmbeddingStore) -> EmbeddingStore:
        for batch in (first, second):
            store.foresee(batch)
        store.end_of_stream()
        return store

    first, second = [keys(1)[0], keys(*range(6))[0]], [keys(9)[0], keys(*range(3, 10))[0]]
    store = told(two(9))
    store.release(store.prepare(first))
    before = (store.counters.as_dict(), [len(host.index) for host in store.hosts])
    with pytest.raises(CacheTooSmall, match=r"are 10 and there are 9 slots; give cache_slots=10"):
        store.prepare(second)
    after = {**store.counters.as_dict(), "batches": before[0]["batches"], "known": before[0]["known"]}
    assert (after, [len(host.index) for host in store.hosts]) == before
    assert store.tiers[0].map.plans == 1  # the group that has room was not planned either
    store = told(two(10))
    store.release(store.prepare(first))
    store.prepare(second)


def test_a_refused_id_reads_its_tables_default_from_a_slot_and_changes_nothing():
    """Must-hold 3. Broken on purpose: gradients of refused keys not dropped; slot 0 given to rows."""
    tables = [TableConfig("t", DIM, default_value=0.25), TableConfig("u", DIM, default_value=-2.0)]
    tiers = Tiers(device_tier="slot_cache", cache_slots=4, features=FeatureRules(admit="count", admit_threshold=2))
    store = EmbeddingStore(tables, optimizer("adagrad", lr=0.1), tiers=tiers)
    ones = np.ones(3, dtype=np.int64)
    batch = [KeySet(np.array([1, 2, 1]), [0, 2, 3], ones, ones * 1.0)]
    held = store.prepare(batch)
    store.commit(held)
    expected = torch.tensor([0.25, 0.25, -2.0])[:, None].expand(3, DIM)
    assert torch.equal(store.gather(held, 0), expected)
    assert torch.equal(store.gather(held, 0, torch.tensor([2, 0, 2])), expected[[2, 0, 2]])
    store.apply(held, [torch.ones(3, DIM)], StepInfo(1))
    store.writeback(held)
    assert torch.equal(store.gather(held, 0), expected)
    store.release(held)
    assert (store.counters.refused, store.counters.inserts, len(store.tiers[0].map)) == (3, 0, 0)
    held = store.prepare(batch)  # each has come twice now
    assert held.groups[0].work.plan.slots.tolist() == [2, 3, 4]  # behind the two defaults


def test_evaluation_sees_the_newest_records_and_changes_nothing():
    """Must-hold 8. Broken on purpose: `look` that plans."""
    store = make(4)
    for number, batch in enumerate((keys(1, 2), keys(3, 4), keys(5, 6)), 1):
        step(store, batch, number)
    tier = store.tiers[0]

    def state():
        places = [values.copy() for values in tier.map._places[1:]]
        return [store.counters.as_dict(), len(store.hosts[0].index), tier.map.plans, tier.slots.clone(), *places]

    before = state()
    held = store.prepare(keys(1, 5, 77, 6), train=False)
    rows = store.gather(held, 0)
    assert torch.equal(rows, store.full_weight("t", np.array([1, 5, 77, 6])))
    assert torch.equal(store.gather(held, 0, torch.tensor([3, 2])), rows[[3, 2]])
    store.release(held)
    for now, then in zip(state(), before, strict=True):
        assert torch.equal(now, then) if isinstance(now, torch.Tensor) else np.array_equal(now, then)
    resident, host = store.full_weight("t", np.array([5])), host_weight(store, 5)
    assert not torch.equal(resident[0], host)


def test_a_share_of_the_rows_grows_in_place():
    store = make(0.5)
    slots = store.tiers[0].slots
    for number in range(1, 30):
        step(store, keys(*range(10 * number, 10 * number + 10)), number)
    tier = store.tiers[0]
    assert tier.slots is slots
    assert tier.map.capacity == 145  # half of 290 rows
    assert store.counters.misses - store.counters.writebacks == 145
    assert tier.nbytes == 145 * 2 * DIM * 4 + tier.map.nbytes


def test_both_ways_take_as_long_as_the_link():
    link = Link(LinkModel(latency_us=2000, gbit_s=1000))
    store = make(2, link=link)
    began = time.perf_counter()
    for number, batch in enumerate((keys(1), keys(2), keys(3)), 1):
        step(store, batch, number)
    assert time.perf_counter() - began >= 4 * 0.002  # three rows up, one down
    assert (link.counters.transfers, link.counters.nbytes) == (4, 4 * 2 * DIM * 4)


def test_a_batch_that_was_broken_off_leaves_a_cache_that_goes_on():
    """The oracle was told of batches that never come."""
    store, plain = make(6, "oracle", look_ahead=2), make(6)
    stream = [keys(1, 2), keys(2, 3), keys(9, 8), keys(1, 7)]
    for batch in stream[:3]:
        store.foresee(batch)
    store.prepare(stream[0])
    store.settle()
    plain.prepare(stream[0])
    plain.settle()
    again = [keys(4, 5), keys(1, 2), keys(6, 7), keys(4, 1)]
    for batch in again:
        store.foresee(batch)
    store.end_of_stream()
    for number, batch in enumerate(again, 2):
        step(store, batch, number)
        step(plain, batch, number)
    ids = np.arange(10)
    assert torch.equal(store.full_weight("t", ids), plain.full_weight("t", ids))


def test_a_cache_that_does_not_fit_into_memory_is_refused():
    with pytest.raises(UserError, match=r"no memory for .* slots of 8 elements"):
        make(1 << 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@pytest.mark.parametrize("dim", [1, 5, 64])
def test_the_torch_optimizers_equal_the_kernels(kind, dtype, dim):
    """SGD bit for bit, the others to a few last bits (torch's root, its order of a sum). Broken on purpose: eps inside
    the root; the own learning rate in place of the step's."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.randperm(50, generator=generator)[:20]
    rule = optimizer(kind, lr=0.05)
    records = torch.rand(50, dim + rule.state_width(dim), generator=generator, dtype=dtype)
    ours, kernel = records.clone(), records.clone()
    for number in range(1, 6):
        grads = torch.randn(20, dim, generator=generator, dtype=dtype)
        info = StepInfo(number, lr=0.01 if number == 3 else None)
        optimizers_torch.update(rule, ours, rows, grads, info)
        rule.update(kernel.numpy(), rows.numpy(), grads.numpy(), info)
    if kind == "sgd":
        assert torch.equal(ours, kernel)
    else:
        torch.testing.assert_close(ours, kernel, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gather_is_the_records_weights_bit_by_bit(dtype, threads):
    """By the kernel on one thread, by `index_select` on three. Broken on purpose: AHEAD rows read in place of row i."""
    tiers = Tiers(device_tier="slot_cache", cache_slots=400, cache_policy="lru")
    tables = [TableConfig("t", 19)]  # no whole number of cache lines
    store = EmbeddingStore(tables, optimizer("adagrad", lr=0.1), seed=1, dtype=dtype, tiers=tiers)
    rng = np.random.default_rng(4)
    step(store, keys(*range(300)), 1)
    held = store.prepare(keys(*rng.permutation(300)[:200]))
    store.commit(held)
    weights = store.tiers[0].slots[:, :19].index_select(0, held.groups[0].work.slots)
    weights[0, 0] = store.tiers[0].slots[held.groups[0].work.slots[0], 0] = float("nan")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (0, 1, 11, 12, 13, 200, 1000):
            positions = torch.from_numpy(rng.integers(0, 200, 2 * count))[::2]  # not contiguous
            rows = store.gather(held, 0, positions)
            assert rows.dtype == dtype and rows.is_contiguous() and tuple(rows.shape) == (count, 19)
            assert rows.numpy().tobytes() == weights[positions].numpy().tobytes()
        for outside in (-1, 200):
            with pytest.raises(IndexError):
                store.gather(held, 0, torch.tensor([0, outside]))
    finally:
        torch.set_num_threads(before)
