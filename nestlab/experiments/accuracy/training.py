"""One training on the ranks that are there: model, pipeline, losses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nestlab import data, device
from nestlab.data.sequences import SequenceData, SequenceOptions
from nestlab.embedding import RowWiseAdagrad, Tiers
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.experiments.accuracy.settings import Settings
from nestlab.experiments.nestpipe.cases import Case, groups_of
from nestlab.experiments.ranks import TIMEOUT_S
from nestlab.models import RecModel
from nestlab.models.sequence import Size, sequence_model, sequence_tables
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.techniques import Techniques
from nestlab.training.tables import as_trains


@dataclass(frozen=True)
class Bench:
    """Where trainings run.

    Attributes:
        transport: of one replica group.
        grouped: the same ranks in several replica groups; None: there is one rank.
        trained: what was trained so far, in order.
    """

    settings: Settings
    dataset: data.Dataset
    transport: Transport
    grouped: Transport | None = None
    trained: list[Any] = field(default_factory=list)
    _sequences: dict[int, SequenceData] = field(default_factory=dict)

    @classmethod
    def on(cls, settings: Settings, transport: Transport) -> Bench:
        dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
        groups = groups_of(settings.world_size) if settings.world_size > 1 else 1
        grouped = CollectiveTransport.connect(groups, settings.device, TIMEOUT_S) if groups > 1 else None
        return cls(settings, dataset, transport, grouped)

    def transport_of(self, flags: Techniques) -> Transport:
        if flags.replica_groups == 1:
            return self.transport
        assert self.grouped is not None
        return self.grouped

    def sequences(self, seed: int) -> SequenceData:
        """Windows with the negatives of a seed, cut once: that takes as long as a twentieth of a training."""
        if seed not in self._sequences:
            self._sequences[seed] = self.dataset.sequences(sequence_options(self.settings, seed))
        return self._sequences[seed]

    def close(self) -> None:
        if self.grouped is not None:
            self.grouped.close()


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        case: the technique.
        encoder: of the dense part.
        seed: of start weights, order of samples and negatives.
        dtype: of all weights and states.
    """

    case: Case
    encoder: str
    seed: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Prepared:
    """Everything ready to train: `loader` gives this rank's slices, an epoch at a time."""

    pipeline: Pipeline
    sequences: SequenceData
    loader: data.Loader


@dataclass(frozen=True)
class Trained:
    """A finished training of this rank; `losses` [steps] float64 are of the global batches."""

    pipeline: Pipeline
    sequences: SequenceData
    losses: np.ndarray
    seconds: float


def train(bench: Bench, training: Training) -> Trained:
    """Every rank calls it, and trains its slice of every global batch."""
    ready, epochs = prepared(bench, training), bench.settings.epochs
    started = time.perf_counter()
    losses = [float(output.loss) for _ in range(epochs) for output in ready.pipeline.run(ready.loader)]
    bench.trained.append(training)
    return Trained(ready.pipeline, ready.sequences, np.array(losses), time.perf_counter() - started)


def prepared(bench: Bench, training: Training) -> Prepared:
    """Data, model and pipeline from the seed of the training; every rank calls it."""
    s, flags = bench.settings, training.case.flags
    sequences, transport, where = bench.sequences(training.seed), bench.transport_of(flags), device.resolve(s.device)
    model = build_model(s, training, sequences, Tiers.of(flags, where))
    model.dense.to(where)
    pipeline = Pipeline(
        model,
        torch.optim.Adam(model.dense.parameters(), lr=s.dense_lr),
        flags,
        schedule=training.case.schedule,
        executor=Lanes() if training.case.overlaps else Inline(),
        device=where,
        transport=transport,
    )
    loader = sequences.batches("train", s.batch_size, shuffle=True, seed=training.seed)
    return Prepared(pipeline, sequences, loader.slice(transport.mesh.rank, transport.mesh.world_size))


def build_model(settings: Settings, training: Training, sequences: SequenceData, tiers: Tiers) -> RecModel:
    """Weights depend on the seed alone, whatever the ranks and tiers."""
    flags, known = training.case.flags, {"item": len(sequences.items)}
    return sequence_model(
        training.encoder,
        sequences,
        Size(settings.dim, settings.blocks, settings.heads, seed=training.seed),
        rows=RowWiseAdagrad(lr=settings.lr, state_scale=float(flags.replica_groups)),
        tiers=tiers,
        tables=as_trains(sequence_tables(settings.dim), known, flags, least=1),
        temperature=settings.temperature,
        dtype=training.dtype,
    )


def sequence_options(settings: Settings, seed: int) -> SequenceOptions:
    """All events count, all windows of a user are trained on, and parts are borders in time."""
    s = settings
    how = {"split": "time", "windows": "all", "heldout": s.later}
    return SequenceOptions(history=s.history, negatives=s.negatives, seed=seed, **how)
