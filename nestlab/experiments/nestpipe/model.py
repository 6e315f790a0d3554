"""The models of the study: tables that hold all their rows, and dense parts that compute much and weigh little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded, EmbeddingStore, KeySet, RowOptimizer, TableConfig, Tiers, optimizer
from nestlab.embedding.sharding import owner
from nestlab.exchange import Mesh
from nestlab.experiments.nestpipe.stream import Stream
from nestlab.models import DenseOutput, RecModel
from nestlab.models.dlrm import initialise
from nestlab.models.sequence import ENCODERS, Retrieval
from nestlab.models.sequence.encoder import Size

LR, DENSE_LR = 0.02, 0.01
_CHUNK = 128  # samples computed at a time: the cost of one does not depend on how many micro-batches there are


class Positionwise(nn.Module):
    """x ← x + relu(W_l·x) / L, layer by layer, on the vector of every feature; their mean makes the logit.

    As in HSTU and other sequence models a layer's few weights are used many times over, so that the dense gradients
    are small beside the rows that travel.
    """

    def __init__(self, dense_in: int, features: Sequence[str], dim: int, layers: int, seed: int = 0) -> None:
        super().__init__()
        self.features = tuple(features)
        self.bottom, self.head = nn.Linear(dense_in, dim), nn.Linear(dim, 1)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        initialise(self, seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        dense_bd = torch.relu(self.bottom(batch.dense.to(self.bottom.weight.dtype)))
        x_bfd = torch.cat([dense_bd.unsqueeze(1), embedded.stack(self.features)], dim=1)
        logits_b = torch.cat([self._logits(part) for part in x_bfd.split(_CHUNK)])
        losses_b = F.binary_cross_entropy_with_logits(logits_b, batch.labels.to(logits_b.dtype), reduction="none")
        return DenseOutput(losses_b, torch.sigmoid(logits_b.detach()))

    def _logits(self, x_bfd: Tensor) -> Tensor:
        for layer in self.layers:
            x_bfd = x_bfd + F.relu(layer(x_bfd)) / len(self.layers)
        return self.head(x_bfd.mean(dim=1)).squeeze(1)


def build_model(
    stream: Stream,
    dim: int,
    layers: int,
    *,
    mesh: Mesh | None = None,
    tiers: Tiers | None = None,
    rows: RowOptimizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> RecModel:
    """Weights depend on seeds alone, whatever the ranks and tiers.

    Args:
        mesh: every row that this rank owns is there; None: no row is, they appear when their ids do.
        rows: the row optimizer; None: Adagrad.
    """
    pooling = "none" if stream.longest else "sum"
    configs = [
        TableConfig(name, dim, stream.tables[name], pooling, initial_rows=count) for name, count in stream.rows.items()
    ]
    store = EmbeddingStore(configs, rows or optimizer("adagrad", lr=LR), tiers=tiers, dtype=dtype)
    if mesh is not None:
        _fill(store, stream, mesh)
    dense = _dense(stream, dim, layers)
    return RecModel(store, dense.double() if dtype == torch.float64 else dense)


def _dense(stream: Stream, dim: int, layers: int) -> nn.Module:
    if not stream.longest:
        return Positionwise(len(stream.dense_names), stream.features, dim, layers)
    return Retrieval(ENCODERS[stream.model](Size(dim, layers, heads=2, longest=stream.longest)))


def _fill(store: EmbeddingStore, stream: Stream, mesh: Mesh) -> None:
    for number, (name, count) in enumerate(stream.rows.items()):
        ids = np.arange(count)
        own = ids[owner(ids, name, mesh.shards) == mesh.shard]
        weights = store.full_weight(name, own).numpy()
        states = np.full((own.size, store.groups[0].state_width), store.optimizer.initial_state, weights.dtype)
        offsets = np.where(np.arange(len(stream.rows) + 1) > number, own.size, 0)
        records = np.concatenate([weights, states], axis=1)
        store.hosts[0].put(KeySet(own, offsets), records, np.zeros(own.size, dtype=np.int32))


def dense_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=DENSE_LR)
