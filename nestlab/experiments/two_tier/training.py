"""Trains DLRM over a stream, and tells what came of it: quality, step times, and the tables themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nestlab import device
from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, KeySet, TableConfig, Tiers, optimizer
from nestlab.experiments.two_tier.one_pass import Stream
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder
from nestlab.training.metrics import auc_interval, binary_metrics

DIM = 16
OPTIMIZER, LR, DENSE_LR = "adagrad", 0.02, 0.001  # as `nestlab train` has them


@dataclass(frozen=True)
class Model:
    """How a model of the study is built.

    Attributes:
        seed: of initial values.
        tiers: of its tables; None: in host memory alone, every id admitted.
        initial_rows: keys of a table that fit before its index grows; 1: so that bytes follow the keys.
        optimizer: of the tables.
        depth: batches in flight.
        device: where it computes.
    """

    seed: int = 0
    tiers: Tiers | None = None
    initial_rows: int = 1
    optimizer: str = OPTIMIZER
    depth: int = 1
    device: str = "cpu"

    def build(self, stream: Stream, recorder: Recorder | None = None) -> Pipeline:
        """Model and pipeline, untrained."""
        dense = DLRM(len(stream.dense_names), stream.features, DIM, seed=self.seed)
        adam = torch.optim.Adam(dense.parameters(), lr=DENSE_LR)
        model = RecModel(self.store(stream.features), dense)
        where = device.resolve(self.device)
        return Pipeline(model, adam, self._techniques(), device=where, recorder=recorder)

    def store(self, features: Sequence[str]) -> EmbeddingStore:
        """A table a feature, all of one width and thus in one group."""
        tables = [TableConfig(name, DIM, initial_rows=self.initial_rows) for name in features]
        return EmbeddingStore(tables, optimizer(self.optimizer, lr=LR), seed=self.seed, tiers=self.tiers)

    def _techniques(self) -> Techniques:
        """The flags that the schedule follows from; the store has its tiers already."""
        tiers = self.tiers or Tiers()
        slots = {"cache_slots": tiers.cache_slots, "cache_policy": tiers.cache_policy, "look_ahead": tiers.look_ahead}
        rules = {"admit": tiers.features.admit, "evict": tiers.features.evict}
        given = slots if tiers.device_tier == "slot_cache" else {}
        return Techniques(device_tier=tiers.device_tier, pipeline_depth=self.depth, **given, **rules)


@dataclass(frozen=True)
class Trained:
    """A finished pass.

    Attributes:
        step_ms: [steps] wall time of each.
        losses: [steps] of each batch before it was learnt (nats).
    """

    pipeline: Pipeline
    step_ms: np.ndarray
    losses: np.ndarray

    @property
    def store(self) -> EmbeddingStore:
        return self.pipeline.model.embedding


Observer = Callable[[EmbeddingStore], None]


def train(pipeline: Pipeline, batches: Iterable[Batch], after_step: Observer = lambda store: None) -> Trained:
    """One pass; `after_step` sees the store between two steps, and its time counts in none."""
    return train_together([pipeline], batches, [after_step])[0]


def train_together(
    pipelines: Sequence[Pipeline], batches: Iterable[Batch], after_step: Sequence[Observer] | None = None
) -> list[Trained]:
    """One pass of each, step by step in turn (A B A B …, beginning with another one each time), so that what else the
    machine does in the meantime falls on all of them alike."""
    runs = [_Run(pipeline, batches) for pipeline in pipelines]
    observers = after_step or [lambda store: None] * len(runs)
    number = 0
    while runs and not all(run.done for run in runs):
        for i in range(len(runs)):
            at = (i + number) % len(runs)
            if runs[at].step():
                observers[at](runs[at].pipeline.model.embedding)
        number += 1
    return [Trained(run.pipeline, np.array(run.step_ms), np.array(run.losses)) for run in runs]


class _Run:
    """One pipeline on its way through the batches."""

    def __init__(self, pipeline: Pipeline, batches: Iterable[Batch]) -> None:
        self.pipeline, self.step_ms, self.losses, self.done = pipeline, [], [], False
        self._outputs = pipeline.run(batches)

    def step(self) -> bool:
        """The next step; False at the end of the batches."""
        started = time.perf_counter()
        output = next(self._outputs, None)
        self.done = output is None
        if output is not None:
            self.losses.append(float(output.loss))
            self.step_ms.append(1e3 * (time.perf_counter() - started))
        return output is not None


def equal(one: Trained, other: Trained, stream: Stream) -> bool:
    """Whether losses, ids, weights and states are the same, bit by bit."""
    tables = ((one.store.export(name), other.store.export(name)) for name in stream.features)
    return bool((one.losses == other.losses).all()) and all(a[name].equal(b[name]) for a, b in tables for name in a)


def insert(store: EmbeddingStore, ids: list[np.ndarray]) -> None:
    """Rows with initial values for ids [n] int64, unique, of each table in turn: as a batch that is never learnt.

    Rows that are there already stay as they are, and come into the device tier.
    """
    residency = store.prepare([KeySet(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))])
    store.commit(residency)
    store.writeback(residency)
    store.release(residency)


def quality(pipeline: Pipeline, heldout: Iterable[Batch], seed: int = 0) -> dict[str, float]:
    """auc with its 95 % interval over resampled rows (auc_low, auc_high), log_loss (nats)."""
    labels, predictions = pipeline.evaluate(heldout)
    metrics = binary_metrics(labels, predictions)
    low, high = auc_interval(labels, predictions, seed=seed)
    return {"auc": metrics["auc"], "auc_low": low, "auc_high": high, "log_loss_nats": metrics["log_loss"]}


def table_size(store: EmbeddingStore) -> dict[str, int]:
    """rows in use now, and the bytes that keep them: index, records (host memory), rules (what admission and eviction
    note), disk."""
    sizes = store.nbytes()
    return {
        "rows": sum(len(host.index) for host in store.hosts),
        "index_bytes": sizes["index"],
        "record_bytes": sizes["records"],
        "rules_bytes": sizes["features"],
        "disk_bytes": store.disk_bytes,
    }
