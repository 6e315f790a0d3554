"""The store's promises: lazy initialisation, evaluation that changes nothing, life of a residency, canonical export."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding import SGD, Adagrad, EmbeddingStore, KeySet, LazyAdam, StepInfo, TableConfig, Tiers
from nestlab.errors import UserError

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
TABLES = [TableConfig("a", 4), TableConfig("b", 4, init_bound=3.0), TableConfig("c", 7)]


def make(kind=None, **options) -> EmbeddingStore:
    return EmbeddingStore(TABLES, kind or Adagrad(lr=0.1), **options)


def keys_of(a: list[int], b: list[int], c: list[int]) -> list[KeySet]:
    return [KeySet(np.array(a + b, np.int64), [0, len(a), len(a) + len(b)]), KeySet(np.array(c, np.int64), [0, len(c)])]


def step(store: EmbeddingStore, keys: list[KeySet], number: int = 1) -> None:
    residency = store.prepare(keys)
    grads = [torch.ones(len(k), group.dim) for k, group in zip(keys, store.groups, strict=True)]
    store.apply(residency, grads, StepInfo(number))
    store.release(residency)


def snapshot(store: EmbeddingStore) -> list:
    """Everything a store holds, as bytes."""
    return [
        [
            host.index.slots.tobytes(),
            host.memory.array[:100].tobytes(),
            host.rows.allocator.tobytes(),
            host.rows.last_seen[:100].tobytes(),
            len(host.index),
        ]
        for host in store.hosts
    ] + [store.counters.as_dict(), store.nbytes()]


def test_tables_of_equal_dim_share_a_group():
    first, second = make().groups
    assert [t.name for t in first.tables] == ["a", "b"] and (first.dim, first.record_width) == (4, 8)
    assert [t.name for t in second.tables] == ["c"] and (second.dim, second.record_width) == (7, 14)


def test_evaluation_changes_nothing_and_reads_what_initialisation_would_give():
    """Broken on purpose: with train=False inserting, the index's bytes differ and this fails."""
    store = make()
    step(store, keys_of([1, 2], [1], [5]))
    before = snapshot(store)
    keys = keys_of([9, 1, -3], [1, 2], [INT64.min, 5])
    residency = store.prepare(keys, train=False)
    assert (residency.groups[0].rows == -1).tolist() == [True, False, True, False, True]
    rows = [store.gather(residency, i) for i in range(2)]
    some = store.gather(residency, 0, torch.tensor([4, 0, 1, 0]))
    with pytest.raises(RuntimeError, match="train=False"):
        store.apply(residency, [torch.ones(5, 4), torch.ones(2, 7)], StepInfo(1))
    store.release(residency)
    a, b, c = (
        store.full_weight(*x) for x in (("a", np.array([9, 1, -3])), ("b", np.array([1, 2])), ("c", keys[1].ids))
    )
    assert snapshot(store) == before
    assert torch.equal(rows[0], torch.cat([a, b])) and torch.equal(rows[1], c)
    assert torch.equal(some, rows[0][[4, 0, 1, 0]])
    residency = store.prepare(keys)  # now they are inserted: the same values
    assert torch.equal(store.gather(residency, 0), rows[0]) and torch.equal(store.gather(residency, 1), rows[1])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(INT64.min, INT64.max), min_size=1, max_size=30, unique=True), st.randoms())
def test_initial_values_do_not_depend_on_order_batches_or_dtype(ids, random):
    shuffled = ids.copy()
    random.shuffle(shuffled)
    one, other, wide = make(), make(), make(dtype=torch.float64)
    one.prepare(keys_of(ids, ids, ids))
    for i in shuffled:
        other.prepare(keys_of([i], [], [i]))
    array = np.array(ids, np.int64)
    for table in TABLES:
        exact = wide.full_weight(table.name, array)
        assert torch.equal(one.full_weight(table.name, array), other.full_weight(table.name, array))
        assert torch.equal(one.full_weight(table.name, array), exact.float())
        assert exact.abs().max() <= table.bound


def test_initial_values_are_uniform_and_differ_by_table_name_seed_and_id():
    store, ids = make(dtype=torch.float64), np.arange(-2_000, 2_000)
    a, b = store.full_weight("a", ids), store.full_weight("b", ids)
    assert abs(a.mean()) < 0.01 and abs(a.std() - 0.5 / 3**0.5) < 0.01 and abs(b.std() - 3 / 3**0.5) < 0.05
    assert a.unique().numel() == a.numel()
    assert not torch.isclose(a * 6, b).any(dim=1).all()
    assert not torch.equal(a, make(seed=1, dtype=torch.float64).full_weight("a", ids))
    alone = EmbeddingStore([TABLES[1]], SGD(lr=1), dtype=torch.float64)
    assert torch.equal(alone.full_weight("b", ids), b), "values depend on the table's name, not on its place"
    correlation = np.corrcoef(a.numpy().T)
    assert np.abs(correlation - np.eye(4)).max() < 0.08


def test_state_starts_as_the_optimizer_says():
    store = make(Adagrad(lr=0.1, initial_accumulator=0.25))
    store.release(store.prepare(keys_of([1], [], [2])))
    assert (store.export("a")["state"] == 0.25).all() and store.export("c")["state"].shape == (1, 7)


def test_export_is_canonical():
    one, other = make(LazyAdam(lr=0.1)), make(LazyAdam(lr=0.1))
    step(one, keys_of([5, -1, INT64.min, 7], [1], [2]))
    step(other, keys_of([7, INT64.min, 5, -1], [1], [2]))
    for table in TABLES:
        left, right = one.export(table.name), other.export(table.name)
        assert all(torch.equal(left[k], right[k]) for k in ("ids", "weight", "state"))
    exported = one.export("a")
    assert exported["ids"].tolist() == [INT64.min, -1, 5, 7] and exported["state"].shape == (4, 8)
    assert torch.equal(exported["weight"], one.full_weight("a", exported["ids"]))


def test_a_gathered_copy_is_not_changed_by_a_later_update():
    store, keys = make(), keys_of([1], [2], [3])
    residency = store.prepare(keys)
    rows = store.gather(residency, 0)
    before = rows.clone()
    store.apply(residency, [torch.ones(2, 4), torch.ones(1, 7)], StepInfo(1, lr=0.5))
    assert torch.equal(rows, before)
    torch.testing.assert_close(store.gather(residency, 0), before - 0.5)


@pytest.mark.parametrize("call", ["commit", "gather", "apply", "writeback", "release"])
def test_use_after_release_raises(call):
    store = make()
    residency = store.prepare(keys_of([1], [], []), batch=17)
    store.release(residency)
    arguments = {"gather": [0], "apply": [[torch.ones(1, 4), torch.ones(0, 7)], StepInfo(1)]}.get(call, [])
    with pytest.raises(RuntimeError, match=rf"{call}: the residency of batch 17 \(tier direct\) is already released"):
        getattr(store, call)(residency, *arguments)


def test_counters_and_bytes():
    store = make()
    step(store, keys_of([1, 2], [1], [5]))
    step(store, keys_of([2, 3], [], [5]), 2)
    counters = store.counters
    assert (counters.batches, counters.known, counters.inserts) == (2, 2, 5)
    assert counters.bytes_updated == (3 + 2) * 8 * 4 + 2 * 14 * 4
    assert store.nbytes()["records"] == 4 * 8 * 4 + 1 * 14 * 4 and store.nbytes()["index"] > 0


def test_wrong_calls_are_named():
    store = make()
    with pytest.raises(ValueError, match="one run a table"):
        store.prepare([KeySet(np.arange(1), [0, 1])])
    with pytest.raises(ValueError, match="gradient of group 0"):
        store.apply(store.prepare(keys_of([1], [], [])), [torch.ones(2, 4), torch.ones(0, 7)], StepInfo(1))
    with pytest.raises(UserError, match="no table is called 'z'"):
        store.full_weight("z", np.arange(2))
    with pytest.raises(UserError, match="unknown device_tier"):
        make(tiers=Tiers(device_tier="magic"))
    with pytest.raises(UserError, match="float32 or float64"):
        make(dtype=torch.float16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim is 0"),
        ({"pooling": "max"}, "unknown pooling 'max'"),
        ({"features": ()}, "empty or repeat"),
        ({"features": ("x", "x")}, "empty or repeat"),
        ({"init_bound": -1.0}, "init_bound"),
        ({"initial_rows": 0}, "initial_rows"),
        ({"name": ""}, "needs a name"),
    ],
)
def test_bad_tables_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        TableConfig(**{"name": "t", "dim": 4, **options})


def test_clashing_tables_are_refused():
    with pytest.raises(UserError, match="table 'a' appears twice"):
        EmbeddingStore([TableConfig("a", 4), TableConfig("a", 8, ("b",))], SGD(lr=0.1))
    with pytest.raises(UserError, match="feature 'x' appears twice"):
        EmbeddingStore([TableConfig("a", 4, ("x",)), TableConfig("b", 4, ("x",))], SGD(lr=0.1))
    with pytest.raises(UserError, match="no tables"):
        EmbeddingStore([], SGD(lr=0.1))


def test_nothing_is_compiled_after_warm_up():
    """A first call with types that warm_up does not cover would put seconds of compiling into a measurement."""
    from nestlab.embedding import kernels, record_kernels

    store = make()
    every = [k for module in (kernels, record_kernels) for k in vars(module).values() if hasattr(k, "signatures")]
    before = {kernel.__name__: len(kernel.signatures) for kernel in every}
    ids = np.arange(3_000)
    ids.flags.writeable = False
    for part in (ids, ids[::-1], torch.arange(5_000)[::2]):
        keys = [KeySet(part, [0, len(part), len(part)]), KeySet(part[:1], [0, 1])]
        residency = store.prepare(keys)
        store.gather(residency, 0, torch.tensor([0]))
        store.apply(residency, [torch.ones(4, len(part)).T, torch.ones(1, 7)], StepInfo(1))
        store.release(residency)
        store.gather(store.prepare([KeySet(part[:0], [0, 0, 0]), keys[1]], train=False), 0)
    store.export("a"), store.full_weight("b", ids)
    assert {kernel.__name__: len(kernel.signatures) for kernel in every} == before
