"""Store, pooling and optimizers together against torch.nn.EmbeddingBag, on random jagged input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.embedding import (
    SGD,
    Adagrad,
    EmbeddingStore,
    LazyAdam,
    RowWiseAdagrad,
    StepInfo,
    TableConfig,
    embed,
    route,
)

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
POOL = [INT64.min, INT64.max, -7, -1, 0, 1, 2, 1 << 40, -(1 << 55), 12345678901]
TABLES = [
    TableConfig("user", 3),
    TableConfig("item", 3, ("seen", "bought"), pooling="mean"),
    TableConfig("tag", 5),
    TableConfig("shop", 3),
]
FEATURES = ("bought", "tag", "user", "shop", "seen")
TABLE_OF = {f: t for t in TABLES for f in t.features}


@st.composite
def batches(draw) -> list[Batch]:
    """1 to 4 batches of 0 to 5 samples; features may be empty, ids repeat within and between them."""
    weighted = draw(st.booleans())
    result = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 5))
        lengths = draw(st.lists(st.integers(0, 4), min_size=5 * size, max_size=5 * size))
        ids = draw(st.lists(st.sampled_from(POOL), min_size=sum(lengths), max_size=sum(lengths)))
        weights = draw(st.lists(st.floats(-2, 2, width=32), min_size=len(ids), max_size=len(ids)))
        result.append(
            Batch(
                dense=torch.zeros(size, 1),
                features=FEATURES,
                ids=torch.tensor(ids, dtype=torch.int64),
                lengths=torch.tensor(lengths, dtype=torch.int64),
                labels=torch.zeros(size),
                id_weights=torch.tensor(weights) if weighted else None,
            )
        )
    return result


class Reference:
    """torch.nn.EmbeddingBag a table, over ids mapped to a dense range, and an optimizer of torch's."""

    def __init__(self, store: EmbeddingStore, kind) -> None:
        sparse = kind.name == "lazy_adam"
        self.bags = {
            t.name: torch.nn.EmbeddingBag.from_pretrained(
                store.full_weight(t.name, np.array(POOL)).clone(),
                freeze=False,
                mode=t.pooling,
                include_last_offset=True,
                sparse=sparse,
            )
            for t in TABLES
        }
        weights = [bag.weight for bag in self.bags.values()]
        if kind.name == "sgd":
            self.optimizer = torch.optim.SGD(weights, lr=kind.lr)
        elif kind.name == "adagrad":
            self.optimizer = torch.optim.Adagrad(weights, lr=kind.lr, eps=kind.eps)
        else:
            self.optimizer = torch.optim.SparseAdam(weights, lr=kind.lr, betas=kind.betas, eps=kind.eps)

    def pooled(self, batch: Batch) -> dict[str, torch.Tensor]:
        offsets, size, result = batch.offsets(), batch.size, {}
        for i, feature in enumerate(batch.features):
            table = TABLE_OF[feature]
            ends = offsets[i * size : (i + 1) * size + 1]
            ids = torch.tensor([POOL.index(x) for x in batch.ids[ends[0] : ends[-1]].tolist()], dtype=torch.int64)
            weights = None
            if batch.id_weights is not None and table.pooling == "sum":
                weights = batch.id_weights[ends[0] : ends[-1]].double()
            bag = self.bags[table.name]
            result[feature] = bag(ids, ends - ends[0], weights) if size else bag.weight.new_zeros(0, table.dim)
        return result

    def step(self, pooled: dict[str, torch.Tensor], size: int) -> None:
        self.optimizer.zero_grad()
        if size:
            loss_of(pooled).backward()
        for bag in self.bags.values() if not size else ():  # a step without samples is still a step: Adam counts it
            zeros = torch.zeros_like(bag.weight)
            bag.weight.grad = zeros.to_sparse(1) if bag.sparse else zeros
        self.optimizer.step()


def loss_of(pooled: dict[str, torch.Tensor]) -> torch.Tensor:
    """Any function that makes gradients differ by feature, sample and column."""
    return sum(
        (value * torch.arange(1, value.numel() + 1).view_as(value).sin()).sum() + (value**2).sum() * (i + 1) / 7
        for i, value in enumerate(pooled.values())
    )


def train(store: EmbeddingStore, batch: Batch, number: int) -> dict[str, torch.Tensor]:
    """One step of the store by its whole protocol; returns the pooled values of its forward pass."""
    keys = route(batch, store.layout)
    residency = store.prepare([group.keys for group in keys])
    store.commit(residency)
    rows = [store.gather(residency, i).requires_grad_() for i in range(len(keys))]
    embedded = embed(rows, keys, batch.size)
    pooled = {feature: embedded.pooled(feature) for feature in batch.features}
    loss_of(pooled).backward()
    store.apply(residency, [leaf.grad for leaf in rows], StepInfo(number))
    store.writeback(residency)
    store.release(residency)
    return pooled


@pytest.mark.parametrize("kind", [SGD(lr=0.2), Adagrad(lr=0.2), LazyAdam(lr=0.05)], ids=lambda kind: kind.name)
@settings(max_examples=40, deadline=None)
@given(stream=batches())
def test_training_equals_embedding_bag_and_torch_optimizers(kind, stream):
    store = EmbeddingStore(TABLES, kind, dtype=torch.float64, seed=3)
    reference = Reference(store, kind)
    for number, batch in enumerate(stream, 1):
        pooled = train(store, batch, number)
        expected = reference.pooled(batch)
        for feature in FEATURES:
            torch.testing.assert_close(pooled[feature], expected[feature], rtol=1e-12, atol=1e-13)
        reference.step(expected, batch.size)
    for table in TABLES:
        expected = reference.bags[table.name].weight.data
        torch.testing.assert_close(store.full_weight(table.name, np.array(POOL)), expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(stream=batches())
def test_float32_follows_float64(stream):
    stores = [EmbeddingStore(TABLES, RowWiseAdagrad(lr=0.1), dtype=d) for d in (torch.float32, torch.float64)]
    for number, batch in enumerate(stream, 1):
        for store in stores:
            train(store, batch, number)
    for table in TABLES:
        small, large = (store.full_weight(table.name, np.array(POOL)).double() for store in stores)
        torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-3)


def test_sequences_and_stacks():
    tables = [TableConfig("a", 2), TableConfig("b", 2), TableConfig("s", 2, pooling="none"), TableConfig("c", 2)]
    store = EmbeddingStore(tables, SGD(lr=0.1))
    lengths = torch.tensor([1, 1, 0, 2, 2, 1, 1, 0])
    batch = Batch(
        torch.zeros(2, 1), ("a", "b", "s", "c"), torch.tensor([1, 2, 3, 3, 8, 9, 8, 5]), lengths, torch.zeros(2)
    )
    keys = route(batch, store.layout)
    residency = store.prepare([group.keys for group in keys])
    rows = [store.gather(residency, 0).requires_grad_()]
    embedded = embed(rows, keys, batch.size)
    values, sequence_lengths = embedded.sequence("s")
    assert sequence_lengths.tolist() == [2, 1]
    torch.testing.assert_close(values, store.full_weight("s", torch.tensor([8, 9, 8])))
    torch.testing.assert_close(embedded.pooled("b")[1], 2 * store.full_weight("b", torch.tensor([3]))[0])
    assert (embedded.pooled("b")[0] == 0).all() and (embedded.pooled("c")[1] == 0).all()
    together = embedded.stack(["a", "b"])
    assert together.shape == (2, 2, 2) and together.data_ptr() == embedded.pooled("a").data_ptr()
    torch.testing.assert_close(embedded.stack(["b", "a"]), together.flip(1))
    torch.testing.assert_close(embedded.stack(["b", "c"])[:, 1], embedded.pooled("c"))
    values.sum().backward()
    (leaf,) = rows
    assert leaf.grad.sum(dim=1).tolist() == [0, 0, 0, 4, 2, 0]
