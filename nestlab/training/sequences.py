"""Training of a sequence model on users' histories, judged each epoch by how it ranks what came next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nestlab.data import Loader
from nestlab.errors import UserError
from nestlab.pipeline import Pipeline
from nestlab.training.fit import FitConfig, Report, Saving, fit
from nestlab.training.history import History
from nestlab.training.looks import RetrievalJudge
from nestlab.training.retrieval import HELDOUT, RankingProtocol, SequenceData


class TrainingData(SequenceData, Protocol):
    """Sequences that can be trained on too."""

    def batches(self, split: str, batch_size: int, *, shuffle: bool = False, seed: int = 0) -> Loader: ...


@dataclass(frozen=True)
class SequenceFit:
    """How a sequence model is trained.

    Args:
        epochs, max_steps: as of `FitConfig`.
        batch_size: samples a step, over all ranks.
        seed: of the order of samples.
        looks: at held-out samples, evenly spread; None: one at the end of each epoch.
        split, look_size, protocol: of a look; see `evaluate_retrieval`.
    """

    epochs: int = 5
    max_steps: int | None = None
    batch_size: int = 256
    seed: int = 0
    looks: int | None = None
    split: str = HELDOUT
    look_size: int = 512
    protocol: RankingProtocol = field(default_factory=RankingProtocol)

    def __post_init__(self) -> None:
        for name in ("batch_size", "look_size"):
            if getattr(self, name) < 1:
                raise UserError(f"fit: {name}={getattr(self, name)}: it must be at least 1")

    def config(self, batches: int) -> FitConfig:
        """For a training part of so many batches."""
        if self.looks is not None:
            return FitConfig(self.epochs, self.max_steps, self.looks)
        steps = FitConfig(self.epochs, self.max_steps).steps(batches)
        return FitConfig(self.epochs, self.max_steps, max(steps // max(batches, 1), 1))


def fit_sequences(
    pipeline: Pipeline,
    data: TrainingData,
    options: SequenceFit | None = None,
    report: Report = lambda line: None,
    saving: Saving | None = None,
) -> History:
    """As `fit`, with a `RetrievalJudge`; every rank calls it, and takes its slices itself.

    Raises:
        UserError: see `fit` and `evaluate_retrieval`.
    """
    options, mesh = options or SequenceFit(), pipeline.transport.mesh
    train = data.batches("train", options.batch_size, shuffle=True, seed=options.seed)
    judge = RetrievalJudge(data, options.split, options.look_size, options.protocol)
    own = train.slice(mesh.rank, mesh.world_size)
    return fit(pipeline, own, judge, options.config(len(train)), report, saving)
