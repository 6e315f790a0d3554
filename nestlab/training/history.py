"""What happened in a training: a row a step, a row a look at held-out data, a row a save."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd


@dataclass
class History:
    """The curve so far; of all ranks, and of the process before where a training was continued.

    Attributes:
        losses: step (from 1), loss, samples of the global batch.
        evaluations: step and the held-out metrics.
        saves: step, number, kind, seconds and bytes of the checkpoints that this process made.
        before: steps of the processes before this one.
        train_seconds: without evaluations and saves.
        last_look: labels and predictions [n] of the newest look at held-out data, of a ranking targets and ranks; None
            where there was none yet.
        best: the metric, higher is better, by which the best look is found.
        shown: the metrics that stand for a look in few words.
    """

    losses: list[tuple[int, float, int]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    saves: list[dict[str, Any]] = field(default_factory=list)
    before: int = 0
    train_seconds: float = 0.0
    samples: int = 0
    last_look: tuple[np.ndarray, np.ndarray] | None = None
    best: str = "auc"
    shown: tuple[str, ...] = ("auc", "log_loss", "ne")

    @property
    def step(self) -> int:
        """Steps trained."""
        return len(self.losses)

    @property
    def own_steps(self) -> int:
        """Steps that this process trained."""
        return self.step - self.before

    def add(self, loss: float, samples: int) -> None:
        self.losses.append((self.step + 1, loss, samples))
        self.samples += samples

    def steps_frame(self) -> pd.DataFrame:
        """step, train_loss (weighted mean of the batch, nats), samples."""
        return pd.DataFrame(self.losses, columns=["step", "train_loss", "samples"])

    def evaluations_frame(self) -> pd.DataFrame:
        """step and the held-out metrics, in the order they were taken."""
        return pd.DataFrame(self.evaluations)

    def metrics_frame(self) -> pd.DataFrame:
        """Final and best held-out metrics side by side: the best of many looks is not the result."""
        frame = self.evaluations_frame()
        best = frame[self.best].idxmax() if frame[self.best].notna().any() else len(frame) - 1
        rows = frame.loc[[frame.index[-1], best]].reset_index(drop=True)
        rows.insert(0, "which", ["final", f"best {'AUC' if self.best == 'auc' else self.best}"])
        return rows

    def saves_frame(self) -> pd.DataFrame:
        """step, number, kind, seconds, bytes."""
        return pd.DataFrame(self.saves, columns=["step", "number", "kind", "seconds", "bytes"])
