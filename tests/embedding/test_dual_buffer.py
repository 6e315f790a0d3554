"""The dual buffer on its own: what is read, copied and written back. Equality with `Direct` is test_tiers_equal's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding import EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers, optimizer
from nestlab.embedding.features import FeatureRules

pytestmark = pytest.mark.core

DIM = 3


def make(name: str = "dual_buffer", kind: str = "adagrad", **options) -> EmbeddingStore:
    tiers = Tiers(device_tier=name, **options)
    return EmbeddingStore([TableConfig("t", DIM)], optimizer(kind, lr=0.1), seed=1, tiers=tiers)


def keys(*ids: int) -> list[KeySet]:
    return [KeySet(np.array(ids, dtype=np.int64), [0, len(ids)])]


def update(store: EmbeddingStore, held, number: int) -> None:
    rows = store.gather(held, 0)
    store.apply(held, [torch.tanh(3 * rows) + 0.1], StepInfo(number))


def end(store: EmbeddingStore, held) -> None:
    store.writeback(held)
    store.release(held)


def prefetched(store: EmbeddingStore, stream: list[list[KeySet]]) -> None:
    """As far ahead as the edges allow: t is retrieved before t − 1 is updated and written back."""
    ahead = None
    for number, batch in enumerate(stream, 1):
        held = store.prepare(batch)
        if ahead is not None:
            update(store, ahead, number - 1)
            store.commit(held)
            end(store, ahead)
        else:
            store.commit(held)
        ahead = held
    update(store, ahead, len(stream))
    end(store, ahead)


def plainly(store: EmbeddingStore, stream: list[list[KeySet]]) -> None:
    for number, batch in enumerate(stream, 1):
        held = store.prepare(batch)
        store.commit(held)
        update(store, held, number)
        end(store, held)


BATCH = st.lists(st.integers(-4, 4).map(lambda i: i * (1 << 60)), max_size=6, unique=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=12), st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "lazy_adam"]))
def test_prefetched_equals_direct(stream, kind):
    """Hazard 2 (in t−2 and t, not in t−1) and the shared rows, which are stale in what was fetched. Broken on purpose:
    `commit` empty; only weights copied; intersection with any earlier batch; write-back of the fetched rows alone."""
    stream = [keys(*ids) for ids in stream]
    direct, plain, early = make("direct", kind), make(kind=kind), make(kind=kind)
    plainly(direct, stream)
    plainly(plain, stream)
    prefetched(early, stream)
    expected = direct.export("t")
    for store in (plain, early):
        for name, values in store.export("t").items():
            assert torch.equal(values, expected[name]), name


def test_the_host_is_read_for_new_rows_alone_and_gets_every_row_back():
    store = make()
    plainly(store, [keys(1, 2, 3), keys(2, 3, 4), keys(1, 4)])
    counted = store.counters
    assert (counted.hits, counted.misses, counted.writebacks) == (3, 5, 8)
    assert (counted.bytes_in, counted.bytes_out) == (5 * 2 * DIM * 4, 8 * 2 * DIM * 4)


def test_gradients_go_to_the_buffer_and_reach_the_host_with_writeback():
    store = make()
    held = store.prepare(keys(5))
    store.commit(held)
    before = store.hosts[0].memory.copy(held.groups[0].rows).clone()
    update(store, held, 1)
    assert torch.equal(store.hosts[0].memory.copy(held.groups[0].rows), before)
    newest = store.gather(held, 0)
    store.writeback(held)
    assert torch.equal(store.hosts[0].memory.copy(held.groups[0].rows, DIM), newest)
    assert not torch.equal(newest, before[:, :DIM])
    store.release(held)
    assert torch.equal(store.full_weight("t", np.array([5])), newest)


def test_what_is_gathered_is_a_copy():
    """With SGD a record is its weights alone: a view would change under autograd's feet."""
    store = make(kind="sgd")
    held = store.prepare(keys(1, 2))
    store.commit(held)
    for rows in (store.gather(held, 0), store.gather(held, 0, torch.tensor([0, 1]))):
        kept = rows.clone()
        store.apply(held, [torch.ones(2, DIM)], StepInfo(1))
        assert torch.equal(rows, kept)
    assert torch.equal(store.gather(held, 0, torch.tensor([1, 1, 0])), store.gather(held, 0)[[1, 1, 0]])


def test_a_larger_batch_gets_a_larger_buffer_while_the_other_is_in_use():
    store = make()
    first = store.prepare(keys(1))
    store.commit(first)
    other = first.groups[0].work.records
    second = store.prepare(keys(*range(1, 50)))
    assert first.groups[0].work.records is other
    update(store, first, 1)
    store.commit(second)
    assert torch.equal(store.gather(second, 0)[:1], store.gather(first, 0))
    tier = store.tiers[0]
    assert tier.nbytes == (1 + 49) * 2 * DIM * 4 + 49 * 8


def test_a_refused_id_reads_the_default_and_changes_nothing():
    tables = [TableConfig("t", DIM, default_value=0.5), TableConfig("u", DIM, default_value=-1.0)]
    rules = FeatureRules(admit="count", admit_threshold=2)
    store = EmbeddingStore(tables, optimizer("sgd", lr=1.0), tiers=Tiers(device_tier="dual_buffer", features=rules))
    ones = np.ones(3, dtype=np.int64)
    for number in (1, 2):
        second = 7 if number == 1 else 8
        held = store.prepare([KeySet(np.array([1, second, second]), [0, 2, 3], ones, ones * 1.0)])
        store.commit(held)
        rows = store.gather(held, 0)
        assert torch.equal(rows[1:], torch.tensor([0.5, -1.0])[:, None].expand(2, DIM))
        store.apply(held, [torch.ones(3, DIM)], StepInfo(number))
        assert torch.equal(store.gather(held, 0)[1:], rows[1:])
        end(store, held)
    assert (store.counters.refused, store.counters.inserts) == (5, 1)
    assert not torch.equal(rows[0], torch.full((DIM,), 0.5))


def test_what_was_forgotten_is_not_copied():
    """Hazard 5: a row whose key was evicted holds another generation. Broken on purpose: `forget` empty."""
    store = make()
    plainly(store, [keys(1, 2)])
    store.tiers[0].forget(store.hosts[0].find(keys(1)[0]))
    held = store.prepare(keys(1, 2))
    assert held.groups[0].work.shared.tolist() == [1]
    assert held.groups[0].work.fetched.tolist() == [0]


def test_evaluation_reads_what_was_written_back_and_changes_nothing():
    store = make()
    plainly(store, [keys(1, 2), keys(2, 3)])
    tier = store.tiers[0]

    def state():
        return [store.counters.as_dict(), len(store.hosts[0].index), tier._number, *[b.clone() for b in tier._buffers]]

    before = state()
    held = store.prepare(keys(3, 9, 1), train=False)
    assert torch.equal(store.gather(held, 0, torch.tensor([2, 0])), store.full_weight("t", np.array([1, 3])))
    store.release(held)
    for now, then in zip(state(), before, strict=True):
        assert torch.equal(now, then) if isinstance(now, torch.Tensor) else now == then
