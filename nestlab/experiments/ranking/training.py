"""One training of a ranking model on the ranks that are there."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from nestlab import device
from nestlab.data import Dataset, Loader
from nestlab.embedding import EmbeddingStore, RowWiseAdagrad, TableConfig, Tiers
from nestlab.experiments.accuracy.training import Bench
from nestlab.experiments.nestpipe.cases import Case
from nestlab.experiments.ranking.settings import DLRM, Settings
from nestlab.models import DLRM as DLRMPart
from nestlab.models import RecModel, ranking_batches, ranking_model
from nestlab.pipeline import Inline, Lanes, Pipeline


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        case: the technique.
        model: of `settings.MODELS`.
        seed: of start weights and order of samples.
        dtype: of all weights and states.
    """

    case: Case
    model: str
    seed: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Trained:
    """A finished training of this rank; `losses` [steps] float64 are of the global batches."""

    pipeline: Pipeline
    losses: np.ndarray
    seconds: float


def train(bench: Bench, training: Training) -> Trained:
    """Every rank calls it, and trains its slice of every global batch."""
    s, mesh = bench.settings, bench.transport_of(training.case.flags).mesh
    pipeline = prepared(bench, training)
    order = {"shuffle": True, "seed": training.seed}
    loader = batches_of(training.model, bench.dataset, "train", s.batch_size, history=s.history, **order)
    loader = loader.slice(mesh.rank, mesh.world_size)
    started = time.perf_counter()
    losses = [float(output.loss) for _ in range(s.epochs) for output in pipeline.run(loader)]
    bench.trained.append(training)
    return Trained(pipeline, np.array(losses), time.perf_counter() - started)


def prepared(bench: Bench, training: Training) -> Pipeline:
    """Model and pipeline from the seed of the training; every rank calls it."""
    s, flags, where = bench.settings, training.case.flags, device.resolve(bench.settings.device)
    model = build_model(s, training, bench.dataset, Tiers.of(flags, where))
    model.dense.to(where)
    return Pipeline(
        model,
        torch.optim.Adam(model.dense.parameters(), lr=s.dense_lr),
        flags,
        schedule=training.case.schedule,
        executor=Lanes() if training.case.overlaps else Inline(),
        device=where,
        transport=bench.transport_of(flags),
    )


def build_model(settings: Settings, training: Training, dataset: Dataset, tiers: Tiers) -> RecModel:
    """Weights depend on the seed alone, whatever the ranks and tiers."""
    s, name = settings, training.model
    made = {"rows": RowWiseAdagrad(lr=s.lr), "seed": training.seed, "dtype": training.dtype, "tiers": tiers}
    if name != DLRM:
        return ranking_model(name, dataset, dim=s.dim, history=s.history, **made)
    store = EmbeddingStore([TableConfig(feature, s.dim) for feature in dataset.features], made.pop("rows"), **made)
    dense = DLRMPart(len(dataset.dense_names), dataset.features, s.dim, seed=training.seed)
    return RecModel(store, dense.to(training.dtype))


def batches_of(name: str, dataset: Dataset, split: str, batch_size: int, *, history: int, **order) -> Loader:
    """What the model of this name reads."""
    if name == DLRM:
        return dataset.batches(split, batch_size, **order)
    return ranking_batches(name, dataset, split, batch_size, history=history, **order)
