"""The frozen window: parts of a batch read the same rows, their gradients are summed, one update closes the batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from nestlab.embedding import EmbeddingStore, Residency, StepInfo
from nestlab.experiments.mechanisms import toy
from nestlab.pipeline import Action, Inline, Key, Stage, build
from nestlab.pipeline.executors import EndOfData, Progress
from nestlab.techniques import Techniques


@dataclass
class _Window:
    """The stages that touch rows or gradients, each noted.

    A sample gives each of its ids a gradient of −1 over the number of samples of the batch that have the id, so that a
    whole batch adds 1 to each of its rows.
    """

    store: EmbeddingStore
    parts: int
    held: dict[int, Residency] = field(default_factory=dict)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    notes: list[dict] = field(default_factory=list)

    def perform(self, action: Action) -> None:
        stage, t, part = action.key
        match stage:
            case Stage.LOAD if t >= len(toy.BATCHES):
                raise EndOfData(t)
            case Stage.PREPARE:
                self.held[t] = self.store.prepare([toy.key_set(t)], batch=t)
                self.sums[t] = torch.zeros(len(toy.keys_of(t)), 1)
            case Stage.EMB_EXCHANGE:
                self._note(action.key, ids=self._ids(t, part))
            case Stage.GRAD_EXCHANGE:
                for sample in self._samples(t, part):
                    for i in sample:
                        shows = sum(i in other for other in toy.BATCHES[t])
                        self.sums[t][toy.keys_of(t).index(i)] -= 1 / shows
                self._note(action.key, ids=self._ids(t, part))
            case Stage.UPDATE:
                self.store.apply(self.held[t], [self.sums[t]], StepInfo(t + 1))
                self._note(action.key, ids=toy.keys_of(t))
            case Stage.RELEASE:
                self.store.release(self.held[t])

    def _note(self, key: Key, ids: list[int]) -> None:
        keys = toy.keys_of(key.batch)
        rows = self.store.gather(self.held[key.batch], 0, torch.tensor([keys.index(i) for i in ids]))[:, 0]
        sums = -self.sums[key.batch][:, 0]
        at_once = [float(rows[n]) + float(sums[keys.index(i)]) for n, i in enumerate(ids)]
        reads = key.stage is Stage.EMB_EXCHANGE
        self.notes.append(
            {
                "batch": key.batch,
                "action": str(key),
                "part's samples": "" if key.part < 0 else _shown(self._samples(key.batch, key.part)),
                "rows in the table": _pairs(ids, rows.tolist()),
                "summed so far": _pairs(keys, sums.tolist()),
                "would read, were each part applied at once": _pairs(ids, at_once) if reads else "",
            }
        )

    def _samples(self, t: int, part: int) -> list[tuple[int, ...]]:
        samples, n = toy.BATCHES[t], len(toy.BATCHES[t])
        return list(samples[part * n // self.parts : (part + 1) * n // self.parts])

    def _ids(self, t: int, part: int) -> list[int]:
        return list(dict.fromkeys(i for sample in self._samples(t, part) for i in sample))


def frozen_window(flags: str) -> pd.DataFrame:
    """A row an exchange or update of the schedule of these flags, in list order, for all batches.

    Columns batch, action, part's samples, rows in the table, summed so far (updates that the gradients of the batch
    come to), would read, were each part applied at once.
    """
    techniques = Techniques.parse(flags)
    store = toy.counting_store()
    window = _Window(store, techniques.micro_batches)
    progress = Progress(build(techniques), Inline())
    while progress.advance(window.perform) is not None:
        pass
    return pd.DataFrame(window.notes)


def _pairs(ids: list[int], values: list[float]) -> str:
    return "  ".join(f"{i}:{np.round(value, 3) + 0.0:g}" for i, value in zip(ids, values, strict=True))


def _shown(samples: list[tuple[int, ...]]) -> str:
    return "  ".join("{" + ", ".join(map(str, sample)) + "}" for sample in samples)
