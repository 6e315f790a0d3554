"""What `pipeline` compares, as sides that train the same batches from the same start: ours, torchrec's, and the floor.

A side takes a run of batches, a step at a time; its look-ahead ends with the run, so that sides can take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, KeySet, TableConfig, Tiers, optimizer
from nestlab.embedding.sharding import owner
from nestlab.exchange import Transport
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder


@dataclass(frozen=True)
class Setting:
    """DLRM over `tables` tables of `rows` × `dim`, one id a sample and table, element-wise Adagrad on the rows.

    Ids follow a power law (Zipf) of exponent `zipf` over shuffled ids, so that frequent rows do not lie together.
    `batch_size` is a rank's.
    """

    tables: int = 26
    rows: int = 100_000
    dim: int = 64
    dense_in: int = 13
    hidden: tuple[int, ...] = (512, 256)  # of both MLPs: 13-512-256-64, and …-512-256-1
    batch_size: int = 2048
    zipf: float = 1.05
    lr: float = 0.02
    eps: float = 1e-8
    seed: int = 11

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"t{i}" for i in range(self.tables))


class Batches:
    """Batch number n of a rank, the same in every run."""

    def __init__(self, setting: Setting, rank: int) -> None:
        self._setting, self._rank = setting, rank
        weights = np.arange(1, setting.rows + 1) ** -setting.zipf
        self._cumulative = np.cumsum(weights) / weights.sum()
        rng = np.random.default_rng(setting.seed)
        self._shuffled = [rng.permutation(setting.rows) for _ in range(setting.tables)]

    def __call__(self, number: int) -> Batch:
        s = self._setting
        rng = np.random.default_rng([s.seed, self._rank, number])
        places = np.searchsorted(self._cumulative, rng.random((s.tables, s.batch_size)), side="right")
        ids = np.concatenate([self._shuffled[t][np.minimum(places[t], s.rows - 1)] for t in range(s.tables)])
        return Batch(
            dense=torch.from_numpy(rng.standard_normal((s.batch_size, s.dense_in), dtype=np.float32)),
            features=s.names,
            ids=torch.from_numpy(ids),
            lengths=torch.ones(ids.size, dtype=torch.int64),
            labels=torch.from_numpy((rng.random(s.batch_size) < 0.25).astype(np.float32)),
        )


def empty_model(setting: Setting, techniques: Techniques | None = None) -> RecModel:
    """Tables without rows; weights depend on seeds alone."""
    tables = [TableConfig(name, setting.dim) for name in setting.names]
    tiers = None if techniques is None else Tiers.of(techniques)
    store = EmbeddingStore(tables, optimizer("adagrad", lr=setting.lr, eps=setting.eps), tiers=tiers)
    dense = DLRM(setting.dense_in, setting.names, setting.dim, bottom=setting.hidden, top=setting.hidden)
    return RecModel(store, dense)


def full_model(setting: Setting, techniques: Techniques, shard: int, shards: int) -> RecModel:
    """As torchrec's tables are: every row that this shard owns is there, in the order of ids."""
    model = empty_model(setting, techniques)
    store, ids = model.embedding, np.arange(setting.rows)
    for number, name in enumerate(setting.names):
        own = ids[owner(ids, name, shards) == shard]
        weights = store.full_weight(name, own).numpy()
        records = np.concatenate([weights, np.full_like(weights, store.optimizer.initial_state)], axis=1)
        offsets = np.where(np.arange(setting.tables + 1) > number, own.size, 0)
        store.hosts[0].put(KeySet(own, offsets), records, np.zeros(own.size, dtype=np.int32))
    return model


def dense_optimizer(setting: Setting) -> Callable[[Iterator[Tensor]], torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=setting.lr)


class Side(Protocol):
    """One way to train."""

    name: str

    def begin(self, batches: list[Batch]) -> None:
        """A run of batches, and all that is not training, such as their conversion."""
        ...

    def step(self) -> float:
        """The next batch of the run; its loss. StopIteration: all are trained."""
        ...


@dataclass
class Ours:
    """`nestlab.pipeline.Pipeline` with some techniques; `lanes`: threads, else one after the other."""

    name: str
    setting: Setting
    techniques: Techniques
    transport: Transport
    lanes: bool = True
    _iterator: Iterator[Batch] = field(default_factory=lambda: iter(()))

    def __post_init__(self) -> None:
        mesh = self.transport.mesh
        self.model = full_model(self.setting, self.techniques, mesh.shard, mesh.shards)
        self.pipeline = Pipeline(
            self.model,
            dense_optimizer(self.setting)(self.model.dense.parameters()),
            self.techniques,
            executor=Lanes() if self.lanes else Inline(),
            transport=self.transport,
        )

    def begin(self, batches: list[Batch]) -> None:
        self._iterator = iter(batches)

    def step(self) -> float:
        return float(self.pipeline.progress(self._iterator).loss)

    def stages(self, batches: list[Batch]) -> dict[str, float]:
        """Milliseconds a step by stage, over one more run: the sum over micro-batches, waiting for others included."""
        self.pipeline.recorder = Recorder(batches=1 << 20)
        for _ in self.pipeline.run(batches):
            pass
        events = self.pipeline.trace().events
        self.pipeline.recorder = None
        taken: dict[str, int] = {}
        for event in events:
            taken[event.stage] = taken.get(event.stage, 0) + event.duration_ns
        return {stage: round(ns / len(batches) / 1e6, 2) for stage, ns in taken.items()}


class Theirs:
    """A pipeline of torchrec's (see `nestlab.interop.baselines`). Its losses are of this rank's samples alone."""

    def __init__(self, setting: Setting, pipeline: str, sharding: str, dedup: bool) -> None:
        from nestlab.interop.baselines import Baseline, Variant

        variant = Variant(pipeline, sharding, dedup)
        self.name = f"torchrec {variant.name}"
        rows = dict.fromkeys(setting.names, setting.rows)
        self.baseline = Baseline(empty_model(setting), rows, dense_optimizer(setting), variant)

    def begin(self, batches: list[Batch]) -> None:
        self._iterator = iter(self.baseline.batches(batches))

    def step(self) -> float:
        return float(self.baseline.progress(self._iterator)[0])


class Floor:
    """The dense part alone on ready-made embeddings: forward, backward down to the embeddings, optimizer."""

    name = "dense part alone"

    def __init__(self, setting: Setting) -> None:
        self._dense = empty_model(setting).dense
        self._optimizer = dense_optimizer(setting)(self._dense.parameters())
        shape = (setting.batch_size, setting.tables, setting.dim)
        self._rows = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.1
        self._rows.requires_grad_()

    def begin(self, batches: list[Batch]) -> None:
        self._iterator = iter(batches)

    def step(self) -> float:
        batch = next(self._iterator)
        loss = self._dense(batch, _Ready(self._rows)).losses.mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._rows.grad = None
        return float(loss.detach())


@dataclass
class _Ready:
    """In the place of `nestlab.embedding.Embedded`."""

    rows: Tensor  # [B, F, dim]

    def stack(self, features: tuple[str, ...]) -> Tensor:
        return self.rows
