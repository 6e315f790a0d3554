"""torchrec's modules and the tiered ones side by side: tables, batches, optimizers, tiers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from nestlab.embedding import SGD, Adagrad, LazyAdam, RowOptimizer, RowWiseAdagrad, Tiers

IDS, SIZE = 100, 7
SLOTS = 120  # of 200 rows and more in the larger group; two batches of it have up to 110
RTOL, ATOL = 2e-5, 2e-6  # of float32 losses and rows after some tens of steps; torch fuses a product into its sum
_DISK = tempfile.TemporaryDirectory()
HOST = 16 << 10  # bytes: with Adam's states, 136 of the 200 records and more

TIERS = [
    pytest.param(Tiers(), id="direct"),
    pytest.param(Tiers("dual_buffer"), id="dual_buffer"),
    *(pytest.param(Tiers("slot_cache", policy, SLOTS), id=policy) for policy in ("clock", "lru", "lfu")),
    pytest.param(Tiers("slot_cache", "lru", SLOTS, disk=_DISK.name, host_capacity=HOST), id="lru-disk"),
]


@dataclass(frozen=True)
class Pair:
    """A row optimizer, and the one of torch that does the same to a parameter."""

    ours: RowOptimizer
    theirs: Callable[[Any], torch.optim.Optimizer]
    fused: tuple[type, dict] | None = None  # what torchrec's fused module takes; fbgemm has no Adam on CPU


def pairs() -> dict[str, Pair]:
    from torchrec.optim import RowWiseAdagrad as Theirs

    row_wise = {"lr": 0.1, "eps": 1e-8}
    return {
        "sgd": Pair(SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1), (torch.optim.SGD, {"lr": 0.1})),
        "adagrad": Pair(
            Adagrad(0.1, eps=1e-8),
            lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8),
            (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8}),
        ),
        "rowwise_adagrad": Pair(RowWiseAdagrad(0.1), lambda p: Theirs(p, **row_wise), (Theirs, row_wise)),
        "lazy_adam": Pair(LazyAdam(0.05), lambda p: _Sparse(p, lr=0.05)),
    }


OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "lazy_adam")
COVER = [  # every optimizer, every tier, and the widest state over each of them
    *(pytest.param(name, Tiers(), id=f"{name}-direct") for name in OPTIMIZERS),
    *(pytest.param("lazy_adam", *tiers.values, id=f"lazy_adam-{tiers.id}") for tiers in TIERS[1:]),
    pytest.param("rowwise_adagrad", Tiers("dual_buffer"), id="rowwise_adagrad-dual_buffer"),
    pytest.param("sgd", Tiers("slot_cache", "clock", SLOTS), id="sgd-clock"),
]


class _Sparse(torch.optim.SparseAdam):
    """SparseAdam on torchrec's modules, whose gradients are dense: rows of zeros are taken for rows not looked up."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    gradient = parameter.grad
                    parameter.grad = None  # torch asks for one layout
                    parameter.grad = gradient.to_sparse(1)
        return super().step(closure)


def bags(pooling: str = "SUM", dims: Sequence[int] = (8, 8, 4), ids: int = IDS) -> list:
    """Three tables; `item` is looked up by two features, `user` by two tables."""
    from torchrec import EmbeddingBagConfig, PoolingType

    names = [["user"], ["seen", "bought"], ["tag", "user"]]
    return [
        EmbeddingBagConfig(
            name=name, embedding_dim=dim, num_embeddings=ids, feature_names=list(features), pooling=PoolingType[pooling]
        )
        for name, dim, features in zip(("user", "item", "tag"), dims, names, strict=True)
    ]


def sequences(ids: int = IDS) -> list:
    from torchrec import EmbeddingConfig

    names = {"user": ["user"], "item": ["seen", "bought"], "tag": ["tag", "user"]}
    return [
        EmbeddingConfig(name=name, embedding_dim=8, num_embeddings=ids, feature_names=features)
        for name, features in names.items()
    ]


def kjt(seed: int, weighted: bool = False, size: int = SIZE, keys: Sequence[str] = ("seen", "user", "bought", "tag")):
    """Bags of 0 to 4 ids; sample 3 is empty everywhere, `bought` in every third batch."""
    from torchrec import KeyedJaggedTensor

    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, (len(keys), size))
    lengths[:, 3:4] = 0
    if seed % 3 == 0 and "bought" in keys:
        lengths[list(keys).index("bought")] = 0
    count = int(lengths.sum())
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.from_numpy(rng.integers(0, IDS, count)),
        lengths=torch.from_numpy(lengths.reshape(-1)),
        weights=torch.from_numpy(rng.random(count).astype(np.float32)) if weighted else None,
    )


def values(output) -> torch.Tensor:
    """Everything a module returned, in order, flat."""
    if isinstance(output, dict):
        return torch.cat([jagged.values().reshape(-1) for jagged in output.values()])
    return output.values().reshape(-1)


def loss(output) -> torch.Tensor:
    flat = values(output)
    return (flat * torch.arange(1, flat.numel() + 1).sin()).sum() + flat.square().sum()


def bag_collections(pair: Pair, tiers: Tiers | None = None, weighted: bool = False, pooling: str = "SUM"):
    """The tiered collection and torchrec's, with equal weights."""
    from torchrec import EmbeddingBagCollection

    from nestlab.interop.torchrec import TieredEmbeddingBagCollection

    torch.manual_seed(0)
    theirs = EmbeddingBagCollection(tables=bags(pooling), is_weighted=weighted)
    ours = TieredEmbeddingBagCollection(bags(pooling), pair.ours, tiers, is_weighted=weighted)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def sequence_collections(pair: Pair, tiers: Tiers | None = None):
    from torchrec import EmbeddingCollection

    from nestlab.interop.torchrec import TieredEmbeddingCollection

    torch.manual_seed(0)
    theirs = EmbeddingCollection(tables=sequences(), need_indices=True)
    ours = TieredEmbeddingCollection(sequences(), pair.ours, tiers, need_indices=True)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def step(module, batch, optimizer: torch.optim.Optimizer | None = None) -> float:
    """One ordinary training step."""
    if optimizer is not None:
        optimizer.zero_grad()
    value = loss(module(batch))
    value.backward()
    if optimizer is not None:
        optimizer.step()
    return value.item()


def tables_of(module) -> dict[str, torch.Tensor]:
    return {key: weight.detach().clone() for key, weight in module.state_dict().items()}


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=RTOL, atol=ATOL)


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
