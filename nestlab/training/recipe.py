"""From options to something that trains: data, model, optimizers and pipeline, all from one seed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch

from nestlab import data, device
from nestlab.data import Dataset, Loader
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.errors import NotAvailableYet, UserError
from nestlab.exchange import Link, LinkModel
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Inline, Lanes, Pipeline, Shuffled
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace
from nestlab.training.fit import FitConfig, History, Report, fit

EXECUTORS = ("auto", "inline", "lanes", "shuffled")


@dataclass(frozen=True)
class TrainOptions:
    """One training run, fully resolved: everything that decides its result.

    Args:
        dataset, data_root, rows: what is trained on (see `nestlab.data.open_dataset`).
        batch_size: samples a step.
        epochs, max_steps, evaluations: see `FitConfig`.
        optimizer, lr: row optimizer of the tables (sgd, adagrad, rowwise_adagrad, lazy_adam) and its learning rate.
        dense_lr: learning rate of Adam on the dense part.
        dim: width of the embedding vectors.
        seed: of initial values and of the order of samples.
        data_seed: of a synthetic twin. Apart from `seed`, so that runs of several seeds see the same rows.
        techniques: the flags, as `name=value,…`.
        executor: `inline`, `lanes` (a thread a lane), `shuffled` (a random order that the schedule allows); `auto` is
            lanes where more than one batch is in flight.
        link: an emulated link between host and device, as `latency,bandwidth` (`10us,100gbit`); empty: none.
        trace_batches: how many batches, from the fifth on, leave events.
    """

    dataset: str = "criteo"
    data_root: str = "datasets"
    rows: int | None = None
    batch_size: int = 512
    epochs: int = 1
    max_steps: int | None = None
    evaluations: int = 4
    optimizer: str = "adagrad"
    lr: float = 0.02
    dense_lr: float = 0.001
    dim: int = 16
    seed: int = 0
    data_seed: int = 0
    device: str = "auto"
    techniques: str = ""
    executor: Literal["auto", "inline", "lanes", "shuffled"] = "auto"
    link: str = ""
    trace_batches: int = 32

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "evaluations", "dim"):
            if getattr(self, name) < 1:
                raise UserError(f"train: {name}={getattr(self, name)}: it must be at least 1")
        if self.executor not in EXECUTORS:
            raise UserError(f"train: executor={self.executor}: it must be one of {', '.join(EXECUTORS)}")
        Tiers.of(Techniques.parse(self.techniques))  # an error is the user's to see before anything is opened
        if self.link:
            LinkModel.parse(self.link)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise NotAvailableYet("train: more than one rank is not available yet; run without torchrun")

    @property
    def fit(self) -> FitConfig:
        return FitConfig(self.epochs, self.max_steps, self.evaluations)


# The first batches compile kernels and fill allocators; what a step costs shows after them.
WARM_UP_BATCHES = 4


@dataclass(frozen=True)
class Recipe:
    """What `assemble` made of the options."""

    options: TrainOptions
    dataset: Dataset
    train: Loader
    heldout: Loader
    model: RecModel
    pipeline: Pipeline

    def fit(self, report: Report = lambda line: None) -> History:
        return fit(self.pipeline, self.train, self.heldout, self.options.fit, report)

    def trace(self) -> Trace:
        return self.pipeline.trace({"dataset": self.dataset.info.title})

    def memory(self, trace: Trace) -> pd.DataFrame:
        """Peak bytes by kind: columns kind, peak_bytes, how_obtained; `trace` is this recipe's."""
        return self.pipeline.memory(trace)


def assemble(options: TrainOptions) -> Recipe:
    """Opens the data and builds model and pipeline."""
    techniques = Techniques.parse(options.techniques)
    dataset = data.open_dataset(options.dataset, options.data_root, rows=options.rows, seed=options.data_seed)
    train = dataset.batches("train", options.batch_size, shuffle=True, seed=options.seed)
    heldout = dataset.batches("heldout", max(options.batch_size, 2048))
    where = device.resolve(options.device)
    link = Link(LinkModel.parse(options.link)) if options.link else None
    model = build_dlrm(dataset, options, Tiers.of(techniques, where, link))
    steps = options.fit.steps(len(train))
    pipeline = Pipeline(
        model,
        torch.optim.Adam(model.dense.parameters(), lr=options.dense_lr),
        techniques,
        executor=_executor(options, techniques),
        device=where,
        recorder=Recorder(first_batch=min(WARM_UP_BATCHES, steps // 2), batches=options.trace_batches),
    )
    return Recipe(options, dataset, train, heldout, model, pipeline)


def _executor(options: TrainOptions, techniques: Techniques) -> Inline | Lanes | Shuffled:
    wanted = options.executor
    if wanted == "auto":
        wanted = "lanes" if techniques.pipeline_depth > 1 else "inline"
    return {"inline": Inline, "lanes": Lanes, "shuffled": lambda: Shuffled(options.seed)}[wanted]()


def build_dlrm(dataset: Dataset, options: TrainOptions, tiers: Tiers | None = None) -> RecModel:
    """DLRM with a table a feature; ids of any value find rows, so no table needs a size."""
    tables = [TableConfig(name, options.dim) for name in dataset.features]
    store = EmbeddingStore(tables, optimizer(options.optimizer, lr=options.lr), seed=options.seed, tiers=tiers)
    dense = DLRM(len(dataset.dense_names), dataset.features, options.dim, seed=options.seed)
    return RecModel(store, dense)
