"""The loop around the pipeline: train, evaluate now and then, keep the curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import pandas as pd

from nestlab.batch import Batch
from nestlab.errors import UserError
from nestlab.pipeline import Pipeline, StepOutput
from nestlab.training.metrics import binary_metrics


class Loader(Protocol):
    """A re-iterable source of batches that knows its length."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class FitConfig:
    """How long to train and how often to look.

    Args:
        epochs: passes over the training batches.
        max_steps: stop after so many steps; None: when the epochs are over.
        evaluations: how many times held-out data are looked at, evenly spread, the last one at the end.
    """

    epochs: int = 1
    max_steps: int | None = None
    evaluations: int = 4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.evaluations < 1 or (self.max_steps is not None and self.max_steps < 1):
            raise UserError("fit: epochs, evaluations and max_steps must be at least 1")

    def steps(self, batches: int) -> int:
        """Steps in all, for a training split of so many batches."""
        return batches * self.epochs if self.max_steps is None else self.max_steps

    def looks(self, batches: int) -> list[int]:
        """The steps after which held-out data are looked at, ascending, the last step among them."""
        total = self.steps(batches)
        return sorted({math.ceil(total * (i + 1) / self.evaluations) for i in range(self.evaluations)})


@dataclass
class History:
    """What happened: a row a step and a row an evaluation."""

    losses: list[tuple[int, float, int]] = field(default_factory=list)  # step (from 1), loss, samples
    evaluations: list[dict[str, float]] = field(default_factory=list)
    train_seconds: float = 0.0
    samples: int = 0

    def steps_frame(self) -> pd.DataFrame:
        """step, train_loss (weighted mean of the batch, nats), samples."""
        return pd.DataFrame(self.losses, columns=["step", "train_loss", "samples"])

    def evaluations_frame(self) -> pd.DataFrame:
        """step and the held-out metrics, in the order they were taken."""
        return pd.DataFrame(self.evaluations)

    def metrics_frame(self) -> pd.DataFrame:
        """Final and best held-out metrics side by side: the best of many looks is not the result."""
        frame = self.evaluations_frame()
        best = frame["auc"].idxmax() if frame["auc"].notna().any() else len(frame) - 1
        rows = frame.loc[[frame.index[-1], best]].reset_index(drop=True)
        rows.insert(0, "which", ["final", "best AUC"])
        return rows


Report = Callable[[str], None]


def fit(
    pipeline: Pipeline,
    train: Loader,
    heldout: Loader,
    config: FitConfig | None = None,
    report: Report = lambda line: None,
) -> History:
    """Trains and evaluates; evaluation drains the pipeline and changes nothing that training sees.

    Time spent in evaluation does not count in `train_seconds`.

    Raises:
        UserError: there is nothing to train on, or the loss is no finite number.
    """
    config = config or FitConfig()
    if len(train) == 0:
        raise UserError("fit: the training split has no batch; use more rows or a smaller batch_size")
    total = config.steps(len(train))
    loop = _Loop(pipeline, heldout, config.looks(len(train)), report)
    started = time.perf_counter()
    for _ in range(math.ceil(total / len(train))):
        loop.epoch(islice(iter(train), total - loop.step))
    loop.history.train_seconds = time.perf_counter() - started - loop.evaluation_seconds
    return loop.history


class _Loop:
    """One fit: where it is, and what it has seen."""

    def __init__(self, pipeline: Pipeline, heldout: Loader, looks: list[int], report: Report) -> None:
        self.pipeline, self.heldout, self.looks, self.report = pipeline, heldout, looks, report
        self.history = History()
        self.evaluation_seconds = 0.0

    @property
    def step(self) -> int:
        return len(self.history.losses)

    def epoch(self, batches: Iterable[Batch]) -> None:
        for output in self.pipeline.run(batches):
            self._add(output)
            if self.looks and self.step >= self.looks[0]:
                self._evaluate()

    def _add(self, output: StepOutput) -> None:
        samples, loss = output.labels.shape[0], float(output.loss)
        if not math.isfinite(loss):
            raise UserError(f"fit: the loss of step {self.step + 1} is {loss}; use a smaller lr, or look at the labels")
        self.history.losses.append((self.step + 1, loss, samples))
        self.history.samples += samples

    def _evaluate(self) -> None:
        started = time.perf_counter()
        for output in self.pipeline.drain():
            self._add(output)
        self.looks = [look for look in self.looks if look > self.step]
        metrics = binary_metrics(*self.pipeline.evaluate(self.heldout))
        self.history.evaluations.append({"step": self.step, **metrics})
        self.evaluation_seconds += time.perf_counter() - started
        recent = np.mean([loss for _, loss, _ in self.history.losses[-20:]])
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in ("auc", "log_loss", "ne"))
        self.report(f"step {self.step}: train loss {recent:.4f}; held out: {shown}")
