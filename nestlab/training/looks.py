"""What a training is judged by: a look at held-out data, of clicks, of several tasks, or of a ranking of items.

`fit` asks a judge now and then; what it says becomes a row of the history, and so of checkpoints and run folders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from nestlab.batch import Batch
from nestlab.pipeline import Pipeline
from nestlab.training.metrics import binary_metrics, gauc, task_metrics
from nestlab.training.retrieval import (
    HELDOUT,
    RankingProtocol,
    SequenceData,
    evaluate_retrieval,
    rank_by_popularity,
)

CLICK = "is_click"  # the task that models of clicks alone have
OF_CLICKS = ("auc", "gauc", "log_loss", "ne")


@dataclass(frozen=True, eq=False)
class Look:
    """One look; the same on every rank.

    Attributes:
        metrics: the same names at every look of a judge.
        outputs: a sample's label and prediction, [n] and [n] or [n, T]; of a ranking its target and rank, [n] each.
    """

    metrics: dict[str, float]
    outputs: tuple[np.ndarray, np.ndarray]


class Judge(ABC):
    """Looks at held-out data through a pipeline with nothing in flight; changes nothing that is learnt."""

    shown: tuple[str, ...]
    """The metrics that a line of the report has."""
    best: str
    """The metric, higher is better, by which the best look is found."""

    @abstractmethod
    def look(self, pipeline: Pipeline) -> Look:
        """Every rank calls it at the same steps."""

    def told(self, metrics: Mapping[str, float]) -> str:
        """A look in few words."""
        return ", ".join(f"{name} {metrics[name]:.4f}" for name in self.shown)

    def figures(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What of a look becomes a run's key figures; one name means one thing, whatever the judge."""
        return {name: metrics[name] for name in self.shown}

    def why_none(self, outputs: tuple[np.ndarray, np.ndarray]) -> str:
        """Of a look whose `best` is no number, why not, in words."""
        return f"there {_are(len(outputs[0]))} to judge by"

    def baseline(self) -> tuple[str, dict[str, float]] | None:
        """What a model has to pass that nothing was learnt for: its name, and the metrics of a look, as many as it has.

        None: the metrics have a zero of their own (an AUC of a half, a normalised entropy of one)."""
        return None


def _are(samples: int) -> str:
    return "is 1" if samples == 1 else f"are {samples:,}"


@dataclass(frozen=True)
class ClickJudge(Judge):
    """Predictions [n] against labels of 0 and 1: `binary_metrics`, and `gauc` where there are groups.

    Args:
        batches: this rank's slice.
        groups: [n], of all held-out samples in their order, such as user ids; None: no `gauc`.
    """

    batches: Iterable[Batch]
    groups: np.ndarray | None = None
    best: ClassVar[str] = "auc"

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(name for name in OF_CLICKS if name != "gauc" or self.groups is not None)

    def why_none(self, outputs: tuple[np.ndarray, np.ndarray]) -> str:
        return f"it takes held-out samples of both labels, and there {_are(len(outputs[0]))} of one label only"

    def look(self, pipeline: Pipeline) -> Look:
        labels, predictions = pipeline.evaluate(self.batches)
        grouped = {} if self.groups is None else gauc(labels, predictions, self.groups)
        return Look(binary_metrics(labels, predictions) | grouped, (labels, predictions))


@dataclass(frozen=True)
class TaskJudge(Judge):
    """Predictions [n, T] against the bits of labels: `task_metrics`.

    Args:
        batches: this rank's slice.
        tasks: the bit of each task, by name, in the order of predictions.
        groups: [n], of all held-out samples in their order, for GAUC; None: without it.
    """

    batches: Iterable[Batch]
    tasks: Mapping[str, int]
    groups: np.ndarray | None = None
    best: ClassVar[str] = "mean_auc"

    @property
    def shown(self) -> tuple[str, ...]:
        return ("mean_auc", *(f"{name}.auc" for name in list(self.tasks)[:3]))

    def told(self, metrics: Mapping[str, float]) -> str:
        first, *others = super().told(metrics).split(", ")
        return ", ".join([f"{first} of {metrics['mean_auc_tasks']:.0f} tasks", *others])

    def figures(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """With those of a click under the names that `ClickJudge` gives them."""
        click = {name: metrics[f"{CLICK}.{name}"] for name in OF_CLICKS if f"{CLICK}.{name}" in metrics}
        return super().figures(metrics) | {"mean_auc_tasks": metrics["mean_auc_tasks"]} | click

    def why_none(self, outputs: tuple[np.ndarray, np.ndarray]) -> str:
        return (
            f"a task takes held-out samples of both labels, and of each there {_are(len(outputs[0]))} of one label only"
        )

    def look(self, pipeline: Pipeline) -> Look:
        labels, predictions = pipeline.evaluate(self.batches)
        return Look(task_metrics(labels, predictions, self.tasks, self.groups), (labels, predictions))


@dataclass(frozen=True)
class RetrievalJudge(Judge):
    """Where the item that came next stands among all items: `evaluate_retrieval`.

    Args:
        data, split, batch_size, protocol, table: see there. Of all ranks: it takes this one's slice itself.
    """

    data: SequenceData
    split: str = HELDOUT
    batch_size: int = 256
    protocol: RankingProtocol = field(default_factory=RankingProtocol)
    table: str = "item"

    @property
    def shown(self) -> tuple[str, ...]:
        k, prefix = self.protocol.ks[0], self.protocol.prefix
        return f"{prefix}HR@{k}", f"{prefix}NDCG@{k}", f"{prefix}MRR"

    @property
    def best(self) -> str:
        return f"{self.protocol.prefix}NDCG@{self.protocol.ks[0]}"

    def baseline(self) -> tuple[str, dict[str, float]]:
        """The items by how often they are met in training, ranked by the same protocol."""
        full = replace(self.protocol, sampled=0)
        return "most popular", rank_by_popularity(self.data, self.split, full).metrics

    def look(self, pipeline: Pipeline) -> Look:
        found = evaluate_retrieval(pipeline, self.data, self.split, self.batch_size, self.protocol, table=self.table)
        return Look(found.metrics, (found.targets, found.ranks))
