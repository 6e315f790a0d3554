"""The store against torchrec and fbgemm, where their builds exist: pooling on KJT, row-wise Adagrad."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, RowWiseAdagrad, StepInfo, TableConfig, embed, route
from nestlab.interop import torchrec as interop

FEATURES = ("seen", "user", "bought", "tag")
IDS, STEPS, DIM = 40, 12, 8


@pytest.fixture(scope="module", autouse=True)
def torchrec():
    available, reason = interop.available()
    if not available:
        pytest.skip(reason)
    return pytest.importorskip("torchrec", exc_type=ImportError)


def tables(item_pooling: str) -> list[TableConfig]:
    return [
        TableConfig("user", DIM),
        TableConfig("item", DIM, ("seen", "bought"), pooling=item_pooling),
        TableConfig("tag", 4),
    ]


def jagged(seed: int, weighted: bool) -> Batch:
    """Seven samples; sample 3 is empty everywhere and feature `bought` in every third batch."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (len(FEATURES), 7), generator=generator)
    lengths[:, 3] = 0
    if seed % 3 == 0:
        lengths[2] = 0
    ids = torch.randint(0, IDS, (int(lengths.sum()),), generator=generator)
    weights = torch.rand(ids.numel(), generator=generator) if weighted else None
    return Batch(torch.zeros(7, 1), FEATURES, ids, lengths.reshape(-1), torch.zeros(7), id_weights=weights)


def step(store: EmbeddingStore, batch: Batch, number: int, loss) -> torch.Tensor:
    """One training step; returns [B, ΣD] in the order of FEATURES."""
    keys = route(batch, store.layout)
    residency = store.prepare([group.keys for group in keys])
    rows = [store.gather(residency, i).requires_grad_() for i in range(len(keys))]
    embedded = embed(rows, keys, batch.size)
    pooled = torch.cat([embedded.pooled(feature) for feature in FEATURES], dim=1)
    loss(pooled).backward()
    store.apply(residency, [leaf.grad for leaf in rows], StepInfo(number))
    store.release(residency)
    return pooled.detach()


def loss(pooled: torch.Tensor) -> torch.Tensor:
    return (pooled * torch.arange(1, pooled.numel() + 1).view_as(pooled).sin()).sum() + pooled.square().sum()


def collection(store: EmbeddingStore, configs: list[TableConfig], weighted: bool):
    """torchrec's EmbeddingBagCollection with the store's weights."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType

    kinds = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
    module = EmbeddingBagCollection(
        device=torch.device("cpu"),
        is_weighted=weighted,
        tables=[
            EmbeddingBagConfig(
                name=t.name,
                embedding_dim=t.dim,
                num_embeddings=IDS,
                feature_names=list(t.features),
                pooling=kinds[t.pooling],
            )
            for t in configs
        ],
    )
    for t in configs:
        module.embedding_bags[t.name].weight.data.copy_(store.full_weight(t.name, np.arange(IDS)))
    return module


@pytest.mark.parametrize(("weighted", "item_pooling"), [(False, "sum"), (False, "mean"), (True, "sum")])
def test_equals_embedding_bag_collection_with_its_rowwise_adagrad(weighted, item_pooling):
    from torchrec.optim import RowWiseAdagrad as Theirs

    configs = tables(item_pooling)
    store = EmbeddingStore(configs, RowWiseAdagrad(lr=0.1, eps=1e-8), seed=2)
    module = collection(store, configs, weighted)
    theirs = Theirs(module.parameters(), lr=0.1, eps=1e-8)
    for number in range(1, STEPS + 1):
        batch = jagged(number, weighted)
        pooled = step(store, batch, number, loss)
        expected = module(interop.to_kjt(batch)).to_dict()
        expected = torch.cat([expected[feature] for feature in FEATURES], dim=1)
        torch.testing.assert_close(pooled, expected.detach(), rtol=2e-5, atol=2e-6)
        theirs.zero_grad()
        loss(expected).backward()
        theirs.step()
    for t in configs:
        torch.testing.assert_close(
            store.full_weight(t.name, np.arange(IDS)), module.embedding_bags[t.name].weight.data, rtol=2e-5, atol=2e-6
        )


def test_equals_fbgemms_fused_rowwise_adagrad():
    """fbgemm's table-batched embedding on CPU, whose update runs inside backward: weights and states agree."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    store = EmbeddingStore([TableConfig("user", DIM)], RowWiseAdagrad(lr=0.1, eps=1e-8))
    fused = SplitTableBatchedEmbeddingBagsCodegen(
        [(IDS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.1,
        eps=1e-8,
    )
    (weight,) = fused.split_embedding_weights()
    weight.data.copy_(store.full_weight("user", np.arange(IDS)))
    for number in range(1, STEPS + 1):
        batch = jagged(number, weighted=False)
        ends = batch.offsets()[7 : 2 * 7 + 1]  # the runs of `user`
        ids, offsets = batch.ids[ends[0] : ends[-1]], ends - ends[0]
        one = Batch(batch.dense, ("user",), ids, offsets.diff(), batch.labels)
        keys = route(one, store.layout)
        residency = store.prepare([keys[0].keys])
        rows = store.gather(residency, 0).requires_grad_()
        pooled = embed([rows], keys, one.size).pooled("user")
        expected = fused(ids, offsets)
        torch.testing.assert_close(pooled, expected, rtol=2e-5, atol=2e-6)
        loss(pooled).backward()
        loss(expected).backward()
        store.apply(residency, [rows.grad], StepInfo(number))
        store.release(residency)
    exported = store.export("user")
    torch.testing.assert_close(exported["weight"], weight.data[exported["ids"]], rtol=2e-5, atol=2e-6)
    (states,) = fused.split_optimizer_states()
    theirs = (states[0] if isinstance(states, list | tuple) else states["sum"]).view(-1)
    torch.testing.assert_close(exported["state"][:, 0], theirs[exported["ids"]], rtol=2e-5, atol=2e-6)
