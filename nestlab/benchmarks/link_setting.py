"""What `pipeline_link` trains: tables with all their rows, and a dense part that computes much and weighs little."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded, EmbeddingStore, KeySet, TableConfig, Tiers, optimizer
from nestlab.embedding.sharding import owner
from nestlab.exchange import Link, Mesh
from nestlab.models import DenseOutput, RecModel

_CHUNK = 128  # samples that the dense part computes at a time


@dataclass(frozen=True)
class Scale:
    """`tables` tables of `rows` × `dim`, one id a sample and table, drawn evenly; Adagrad. `batch_size` is a rank's.

    Rows are so many that micro-batches share few of them: what is exchanged then hardly depends on N, as the law
    (exposed = total / N) supposes. One row in ten is in the next batch too, on which the dual buffer has to act.

    Attributes:
        layers, width: how often the dense part applies its one layer of width × width weights; decides the compute.
        parts: the N that are tried; `reported` is the summary's.
        warm, steps: batches a run before the traced ones, and traced.
        rounds: how often all runs take turns.
        exchange, retrieval: what the links are to need, of the compute.
    """

    tables: int = 8
    rows: int = 20_000
    dim: int = 128
    batch_size: int = 2048
    layers: int = 20
    width: int = 64
    parts: tuple[int, ...] = (1, 2, 4, 8, 16)
    reported: int = 8
    warm: int = 3
    steps: int = 8
    rounds: int = 2
    exchange: float = 0.6
    retrieval: float = 0.4
    seed: int = 7

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"t{i}" for i in range(self.tables))


class Tied(nn.Module):
    """x ← x + relu(W·x) / n, n times with one W, on pieces of every feature's vector; their mean makes the logit.

    Communication hides behind computation, not behind weights: few of them keep the dense reduce, which is on the same
    link, small beside a micro-batch's rows. The samples are computed a few at a time, so that the cost of one does not
    depend on N.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.features, self.times = scale.names, scale.layers
        self.layer, self.head = nn.Linear(scale.width, scale.width), nn.Linear(scale.width, 1)
        generator = torch.Generator().manual_seed(scale.seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(0.0, scale.width**-0.5, generator=generator)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        logits_b = torch.cat([self._logits(x_bpw) for x_bpw in embedded.stack(self.features).split(_CHUNK)])
        losses_b = F.binary_cross_entropy_with_logits(logits_b, batch.labels, reduction="none")
        return DenseOutput(losses_b, torch.sigmoid(logits_b.detach()))

    def _logits(self, x_bpw: torch.Tensor) -> torch.Tensor:
        x_bpw = x_bpw.reshape(len(x_bpw), -1, self.layer.in_features)
        for _ in range(self.times):
            x_bpw = x_bpw + F.relu(self.layer(x_bpw)) / self.times
        return self.head(x_bpw.mean(dim=1)).squeeze(1)


def batch(scale: Scale, rank: int, number: int) -> Batch:
    """Batch `number` of a rank, the same in every run."""
    rng = np.random.default_rng([scale.seed, rank, number])
    count = scale.tables * scale.batch_size
    return Batch(
        dense=torch.empty(scale.batch_size, 0),
        features=scale.names,
        ids=torch.from_numpy(rng.integers(0, scale.rows, count)),
        lengths=torch.ones(count, dtype=torch.int64),
        labels=torch.from_numpy((rng.random(scale.batch_size) < 0.3).astype(np.float32)),
    )


def full_model(scale: Scale, mesh: Mesh, link: Link | None) -> RecModel:
    """Two buffers above the host tier, joined by `link`; every row that this rank owns is there."""
    tables = [TableConfig(name, scale.dim) for name in scale.names]
    tiers = Tiers(device_tier="dual_buffer", link=link)
    store = EmbeddingStore(tables, optimizer("adagrad", lr=0.02), tiers=tiers)
    ids = np.arange(scale.rows)
    for number, name in enumerate(scale.names):
        own = ids[owner(ids, name, mesh.shards) == mesh.shard]
        weights = np.random.default_rng([scale.seed, number]).normal(0.0, 0.1, (scale.rows, scale.dim))[own]
        records = np.concatenate([weights, np.full_like(weights, 0.1)], axis=1).astype(np.float32)
        offsets = np.where(np.arange(scale.tables + 1) > number, own.size, 0)
        store.hosts[0].put(KeySet(own, offsets), records, np.zeros(own.size, dtype=np.int32))
    return RecModel(store, Tied(scale))


def compute_s(scale: Scale, repeats: int = 4) -> float:
    """Seconds of this thread's CPU that forward and backward of a batch take, the quickest of `repeats`.

    By the CPU and not by the clock: others on the machine lengthen the latter, and links are set by it only once.
    """
    dense, made = Tied(scale), batch(scale, 0, 0)
    rows_bfd = torch.randn(scale.batch_size, scale.tables, scale.dim, generator=torch.Generator().manual_seed(1))
    seconds = []
    for _ in range(repeats):
        ready, start = _Ready(rows_bfd.clone().requires_grad_()), time.thread_time()
        dense(made, ready).losses.mean().backward()
        seconds.append(time.thread_time() - start)
    return min(seconds)


@dataclass
class _Ready:
    """In the place of `nestlab.embedding.Embedded`."""

    rows: torch.Tensor  # [B, F, dim]

    def stack(self, features: tuple[str, ...]) -> torch.Tensor:
        return self.rows


def digest(model: RecModel, names: tuple[str, ...]) -> bytes:
    """Of every bit of this rank's tables, states too, and of the dense part."""
    found = hashlib.sha256()
    for name in names:
        for values in model.embedding.export(name).values():
            found.update(values.numpy().tobytes())
    for values in model.dense.state_dict().values():
        found.update(values.numpy().tobytes())
    return found.digest()
