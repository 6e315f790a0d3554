"""Trains tables alone, under a real schedule, in any order that it allows: what every tier is compared with.

Gradients are a function of the weights that were read, so that one stale or lost record changes all that follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import EmbeddingStore, KeySet, Residency, StepInfo, TableConfig, Tiers, optimizer
from nestlab.pipeline import Inline, Shuffled, build
from nestlab.pipeline.executors import EndOfData, Progress
from nestlab.pipeline.schedule import Action, Stage
from nestlab.techniques import Techniques

TABLES = (TableConfig("a", 6), TableConfig("b", 6, init_bound=0.3), TableConfig("c", 3, admit_threshold=1))
DISTINCT = 4_000  # ids of table a


def stream(seed: int, batches: int = 200) -> list[list[KeySet]]:
    """Batches of unique keys, one KeySet a group, with counts and clicks.

    Skewed, with new ids all along; keys of t−2 that t−1 does not have come back in t; keys come back long after; every
    seventh batch of one table is empty.
    """
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, DISTINCT + 1) ** 0.9
    weights /= weights.sum()
    ids = rng.permutation(DISTINCT) * (2**40 + 1) - 2**50
    drawn: list[list[np.ndarray]] = []
    for t in range(batches):
        a = rng.choice(ids, 90, replace=False, p=weights)
        if t >= 2:
            skipped = np.setdiff1d(drawn[t - 2][0], drawn[t - 1][0])
            a = np.concatenate([a, rng.permutation(skipped)[:15]])
        if t >= 40:
            a = np.concatenate([a, rng.choice(drawn[t - 40][0], 10, replace=False)])
        b = rng.choice(300, 20, replace=False) - 150 if t % 7 else np.empty(0, np.int64)
        drawn.append([_first(a), b.astype(np.int64), rng.choice(120, 25, replace=False)])
    return [[_keys(rng, a, b), _keys(rng, c)] for a, b, c in drawn]


def _first(ids: np.ndarray) -> np.ndarray:
    """Without repeats, in order of first appearance."""
    return ids[np.sort(np.unique(ids, return_index=True)[1])]


def _keys(rng: np.random.Generator, *tables: np.ndarray) -> KeySet:
    ids = np.concatenate(tables)
    counts = rng.integers(1, 4, ids.size)
    offsets = np.cumsum([0, *map(len, tables)])
    return KeySet(ids, offsets, counts, rng.binomial(counts, 0.3).astype(np.float64))


@dataclass
class TableRun:
    """The stages of a training step that touch tables; the others do nothing."""

    store: EmbeddingStore
    batches: list[list[KeySet]]
    held: dict[int, Residency] = field(default_factory=dict)
    rows: dict[int, list[Tensor]] = field(default_factory=dict)
    foreseen: int = 0

    def perform(self, action: Action) -> None:
        stage, t = action.key.stage, action.key.batch
        match stage:
            case Stage.LOAD if t >= len(self.batches):
                raise EndOfData(t)
            case Stage.PREPARE:
                self._foresee(t)
                self.held[t] = self.store.prepare(self.batches[t], batch=t)
            case Stage.POST:
                self.held[t] = self.store.resolve(self.batches[t], batch=t)
            case Stage.PLAN:
                self._foresee(t)
                self.store.plan(self.held[t])
            case Stage.EMB_EXCHANGE:
                self.rows[t] = [self.store.gather(self.held[t], g) for g in range(len(self.store.groups))]
            case Stage.UPDATE:
                self.store.apply(self.held[t], self._grads(t), StepInfo(t + 1))
            case Stage.EVICT:
                self.store.evict()
            case Stage.RETRIEVE | Stage.COMMIT | Stage.WRITEBACK | Stage.RELEASE:
                getattr(self.store, stage.lower())(self.held[t])
                if stage is Stage.RELEASE:
                    del self.held[t]
            case _:
                pass

    def _foresee(self, t: int) -> None:
        for keys in self.batches[self.foreseen : t + self.store.options.looks_ahead + 1]:
            self.store.foresee(keys)
            self.foreseen += 1
            if self.foreseen == len(self.batches):
                self.store.end_of_stream()

    def _grads(self, t: int) -> list[Tensor]:
        return [torch.tanh(3 * rows) + 0.01 * (t % 5) for rows in self.rows.pop(t)]


def train(
    batches: list[list[KeySet]], flags: Techniques, kind: str, *, dtype=torch.float32, executor=None, schedule=None
):
    """The store after all batches; `schedule` None stands for the flags' own."""
    store = EmbeddingStore(TABLES, optimizer(kind, lr=0.1), seed=3, dtype=dtype, tiers=Tiers.of(flags))
    run, progress = TableRun(store, batches), Progress(schedule or build(flags), executor or Inline())
    while progress.advance(run.perform) is not None:
        pass
    return store


def learnt(store: EmbeddingStore) -> dict[str, bytes]:
    """Every id, weight and state, as bytes."""
    return {
        f"{table.name}.{name}": values.numpy().tobytes()
        for group in store.groups
        for table in group.tables
        for name, values in store.export(table.name).items()
    }


__all__ = ["DISTINCT", "Inline", "Shuffled", "TableRun", "learnt", "stream", "train"]
