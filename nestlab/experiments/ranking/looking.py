"""How a trained model predicts the rows that it has not seen: of clicks, and action by action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nestlab.data import Dataset
from nestlab.data.loader import array_of
from nestlab.models.ranking import RANKING, TASKS
from nestlab.training.metrics import auc_interval, binary_metrics, gauc

CLICK = "is_click"
SHOWN = {"auc": "AUC", "gauc": "GAUC", "log_loss": "log loss", "ne": "NE"}  # in tables and plots, by name
METRICS = tuple(SHOWN.values())


@dataclass(frozen=True)
class HeldOut:
    """The rows of a split, in their order; they are never shuffled.

    Attributes:
        split: `heldout`.
    """

    dataset: Dataset
    split: str = "heldout"

    @cached_property
    def users(self) -> np.ndarray:
        """[n] int64: whose row it is."""
        return self._column("user_id")

    def labels(self, task: str) -> np.ndarray:
        """[n] float32, 0 or 1."""
        return self._column(task).astype(np.float32)

    def _column(self, name: str) -> np.ndarray:
        first, end = self.dataset.rows(self.split)
        return array_of(self.dataset.table.slice(first, end - first), name).to_numpy()

    def metrics(self, task: str, predictions: np.ndarray) -> dict[str, float]:
        """METRICS of predictions [n] of one action; `label rate`, `mean prediction`, and `positives`."""
        labels = self.labels(task)
        found = binary_metrics(labels, predictions) | gauc(labels, predictions, self.users)
        told = {"label rate": found["label_rate"], "mean prediction": found["mean_prediction"]}
        told |= {"positives": int(labels.sum()), "samples": len(labels), "GAUC share": found["gauc_share"]}
        return {shown: found[name] for name, shown in SHOWN.items()} | told

    def interval(self, task: str, predictions: np.ndarray) -> dict[str, float]:
        """Where the AUC would lie, 95 %, on other rows of this number."""
        low, high = auc_interval(self.labels(task), predictions, resamples=100)
        return {"AUC low": low, "AUC high": high}


def by_task(model: str, predictions: np.ndarray) -> Mapping[str, np.ndarray]:
    """Predictions [n] by the action that they are of; of a model with one head the clicks'."""
    if model in RANKING and RANKING[model].tasks:
        return {name: predictions[:, number] for number, name in enumerate(TASKS)}
    return {CLICK: predictions}


def training_rate(dataset: Dataset, task: str = CLICK) -> float:
    """Of the training rows: what a model that knows nothing of a sample would predict of it."""
    return float(HeldOut(dataset, "train").labels(task).mean())
