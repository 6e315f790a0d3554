"""From options to something that trains: data, model, optimizers, pipeline and ranks, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from nestlab import data, device, plugins
from nestlab.data import Dataset, Loader
from nestlab.data.loader import SHUFFLES
from nestlab.data.reorder import MODES, ReorderOptions, reorder
from nestlab.embedding import EmbeddingStore, RowOptimizer, Tiers, optimizer
from nestlab.errors import UserError
from nestlab.exchange import Link, LinkModel, LocalTransport, Transport
from nestlab.launch import environment
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Inline, Lanes, Pipeline, Shuffled
from nestlab.pipeline.dense import Clipped
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace
from nestlab.tracing.gather import gather_traces
from nestlab.training.checkpoint import FULL_EVERY, Checkpoints, Facts, Trained, check_folder, restore, step_of
from nestlab.training.fit import FitConfig, Report, Saving, fit
from nestlab.training.gathering import together
from nestlab.training.history import History
from nestlab.training.tables import tables_of

EXECUTORS = ("auto", "inline", "lanes", "shuffled")


@dataclass(frozen=True)
class TrainOptions:
    """One training run, fully resolved: everything that decides its result.

    How many ranks there are is no option: the environment says it (see `nestlab.launch.environment`), and the batches
    do not depend on it.

    Args:
        dataset, data_root, rows: what is trained on (see `nestlab.data.open_dataset`).
        batch_size: samples a step, over all ranks.
        epochs, max_steps, evaluations: see `FitConfig`.
        optimizer, lr: row optimizer of the tables (sgd, adagrad, rowwise_adagrad, lazy_adam) and its learning rate.
        dense_lr: learning rate of Adam on the dense part.
        clip_norm: all gradients of a batch are scaled down to this norm where theirs is above it; 0: never.
        dim: width of the embedding vectors.
        seed: of initial values and of the order of samples.
        shuffle: the order of samples: `full`, or `window`, within windows of consecutive ones; see `Loader`.
        data_seed: of a synthetic twin. Apart from `seed`, so that runs of several seeds see the same rows.
        reorder: ids in an order that suits tensor-train tables: communities, frequency or none (ascending); see
            `nestlab.data.reorder`. Empty: ids as they are.
        techniques: the flags, as `name=value,…`.
        executor: `inline`, `lanes` (a thread a lane), `shuffled` (a random order that the schedule allows); `auto` is
            lanes where more than one batch or micro-batch is in flight.
        link: an emulated link between host and device, as `latency,bandwidth` (`10us,100gbit`); empty: none.
        network: the same between ranks.
        timeout: seconds after which a rank that waits for another gives up.
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
    clip_norm: float = 0.0
    dim: int = 16
    seed: int = 0
    shuffle: str = "full"
    data_seed: int = 0
    reorder: str = ""
    device: str = "auto"
    techniques: str = ""
    executor: Literal["auto", "inline", "lanes", "shuffled"] = "auto"
    link: str = ""
    network: str = ""
    timeout: float = 60.0
    trace_batches: int = 32

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "evaluations", "dim"):
            if getattr(self, name) < 1:
                raise UserError(f"train: {name}={getattr(self, name)}: it must be at least 1")
        if self.executor not in EXECUTORS:
            raise UserError(f"train: executor={self.executor}: it must be one of {', '.join(EXECUTORS)}")
        if self.shuffle not in SHUFFLES:
            raise UserError(f"train: shuffle={self.shuffle}: it must be one of {', '.join(SHUFFLES)}")
        if self.reorder and self.reorder not in MODES:
            raise UserError(f"train: reorder={self.reorder}: it must be one of {', '.join(MODES)}, or left out")
        if not 0 <= self.clip_norm < float("inf"):
            raise UserError(f"train: clip_norm={self.clip_norm}: give a norm above 0, or 0 for no clipping")
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"train: timeout={self.timeout}: give seconds above 0")
        Tiers.of(Techniques.parse(self.techniques))  # an error is the user's to see before anything is opened
        for name in ("link", "network"):
            if given := getattr(self, name):
                _check_link(name, given)

    @property
    def fit(self) -> FitConfig:
        return FitConfig(self.epochs, self.max_steps, self.evaluations)

    @property
    def how(self) -> str:
        """How figures of such a run are obtained, in the words of the run store."""
        return "emulated link" if self.link or self.network else "measured"


def _check_link(name: str, given: str) -> None:
    try:
        LinkModel.parse(given)
    except UserError as error:
        raise UserError(f"train: --{name}: {str(error).removeprefix('link: ')}") from None


@dataclass(frozen=True)
class SaveOptions:
    """Where a training is saved, and whether it goes on from there. None of it decides a result.

    Args:
        folder: one that all ranks see.
        every, full_every: see `Checkpoints`.
        restart: go on from the checkpoint in `folder` if there is one.
    """

    folder: Path
    every: int = 100
    full_every: int = FULL_EVERY
    restart: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "full_every"):
            if getattr(self, name) < 1:
                raise UserError(f"train: checkpoint_{name}={getattr(self, name)}: it must be at least 1")


# The first batches compile kernels and fill allocators; what a step costs shows after them.
WARM_UP_BATCHES = 4


@dataclass(frozen=True)
class Recipe:
    """What `assemble` made of the options. `close` frees the connection to other ranks; `with` does so at its end."""

    options: TrainOptions
    dataset: Dataset
    train: Loader
    heldout: Loader
    model: RecModel
    pipeline: Pipeline
    transport: Transport = field(default_factory=LocalTransport)
    saving: Saving = field(default_factory=Saving)

    def fit(self, report: Report = lambda line: None) -> History:
        return fit(self.pipeline, self.train, self.heldout, self.options.fit, report, self.saving)

    def trace(self) -> Trace:
        """This rank's."""
        return self.pipeline.trace({"dataset": self.dataset.info.title, "how": self.options.how})

    def trace_of_all_ranks(self, trace: Trace) -> Trace | None:
        """`trace` of every rank, merged, on rank 0; None elsewhere. All ranks call it, each with its own."""
        return trace if self.transport.mesh.world_size == 1 else gather_traces(self.transport, trace)

    def memory(self, trace: Trace) -> pd.DataFrame:
        """Peak bytes by kind: columns kind, peak_bytes, how_obtained; `trace` is this recipe's."""
        return self.pipeline.memory(trace)

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Recipe:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def connect(options: TrainOptions) -> Transport:
    """Joins the ranks that the environment names; a process on its own is a world of one.

    Raises:
        UserError: the environment is incomplete, the replica groups do not divide the ranks, or the flag `transport`
            names nothing that connects.
        RankFailed: a rank did not come in time.
    """
    place, flags = environment(), Techniques.parse(options.techniques)
    replicas, brought = flags.replica_groups, plugins.transport(flags.transport)
    world_size = 1 if place is None else place.world_size
    if world_size % replicas:
        raise UserError(
            f"train: replica_groups={replicas} do not divide {world_size} rank(s); start more, or fewer groups"
        )
    if world_size == 1:
        if options.network:
            raise UserError(
                f"train: network={options.network}: one rank has none; start more with torchrun, or leave it out"
            )
        if brought:
            raise UserError(
                f"train: transport={flags.transport}: one rank has none; start more with torchrun, or leave it out"
            )
        return LocalTransport()
    from nestlab.exchange.collective import CollectiveTransport

    join = brought or CollectiveTransport.connect
    transport: Transport = join(replicas=replicas, device=device.resolve(options.device), timeout_s=options.timeout)
    if options.network:
        from nestlab.exchange.linked import Linked

        transport = Linked(transport, Link(LinkModel.parse(options.network)))
    return transport


def assemble(
    options: TrainOptions, transport: Transport | None = None, saves: SaveOptions | None = None, report: Report = print
) -> Recipe:
    """Opens the data and builds model and pipeline; every rank calls it.

    Args:
        transport: as `connect` made it, the caller's to close; None: made here, the recipe's to close.
        saves: where to save, and to go on from.
        report: is told whether the training goes on or starts.
    """
    if transport is not None:
        return _assemble(options, transport, saves, report)
    made = connect(options)
    try:
        return _assemble(options, made, saves, report)
    except BaseException as error:
        made.fail("start", error)
        made.close()
        raise


def _assemble(options: TrainOptions, transport: Transport, saves: SaveOptions | None, report: Report) -> Recipe:
    techniques, mesh = Techniques.parse(options.techniques), transport.mesh
    dataset = data.open_dataset(options.dataset, options.data_root, rows=options.rows, seed=options.data_seed)
    if options.reorder:
        dataset = dataset.reordered(reorder(dataset, ReorderOptions(mode=options.reorder)))
    train = dataset.batches("train", options.batch_size, shuffle=options.shuffle, seed=options.seed)
    heldout = dataset.batches("heldout", max(options.batch_size, 2048))
    where = device.resolve(options.device)
    link = Link(LinkModel.parse(options.link)) if options.link else None
    model = build_dlrm(dataset, options, Tiers.of(techniques, where, link))
    model.dense.to(where)  # before its optimizer, whose state may come from a checkpoint, looks where it lies
    adam = torch.optim.Adam(model.dense.parameters(), lr=options.dense_lr)
    saving = _saving(saves, Trained(model, adam, transport, where), _facts(options, dataset), report)
    steps = options.fit.steps(len(train)) - (saving.begin.history.step if saving.begin else 0)
    pipeline = Pipeline(
        model,
        Clipped(adam, options.clip_norm) if options.clip_norm else adam,
        techniques,
        executor=_executor(options, techniques),
        device=where,
        recorder=Recorder(min(WARM_UP_BATCHES, steps // 2), options.trace_batches, mesh.rank),
        transport=transport,
    )
    slices = [loader.slice(mesh.rank, mesh.world_size) for loader in (train, heldout)]
    return Recipe(options, dataset, *slices, model, pipeline, transport, saving)


def _facts(options: TrainOptions, dataset: Dataset) -> Facts:
    """What a continued training must have in common with the one before. Executor, ranks, tiers and depth are none."""
    names = ("batch_size", "optimizer", "lr", "dense_lr", "clip_norm", "dim", "seed")
    info, order = dataset.info, dataset.id_map
    data_of_it = {"dataset": info.id, "rows": info.rows, "data_fingerprint": info.fingerprint}
    data_of_it["reorder"] = "" if order is None else order.manifest["fingerprint"]
    data_of_it["shuffle"] = options.shuffle
    return data_of_it | {name: getattr(options, name) for name in names}


def _saving(saves: SaveOptions | None, trained: Trained, facts: Facts, report: Report) -> Saving:
    if saves is None:
        return Saving()
    checkpoints = Checkpoints(saves.folder, trained, saves.every, saves.full_every, facts)
    together(trained.transport, lambda: check_folder(saves.folder))
    step = step_of(saves.folder, trained.transport)
    if step is None:
        report(f"checkpoint: none in '{saves.folder}' yet; training starts")
        return Saving(checkpoints)
    if not saves.restart:
        raise UserError(
            f"checkpoint: '{saves.folder}' holds a training of {step} steps; add --restart to go on from it, or name "
            "another folder"
        )
    report(f"checkpoint: training goes on after step {step} of '{saves.folder}'")
    return Saving(checkpoints, restore(saves.folder, trained, facts))


def _executor(options: TrainOptions, techniques: Techniques) -> Inline | Lanes | Shuffled:
    wanted = options.executor
    if wanted == "auto":
        wanted = (
            "lanes"
            if max(techniques.pipeline_depth, techniques.micro_batches, techniques.table_groups) > 1
            else "inline"
        )
    return {"inline": Inline, "lanes": Lanes, "shuffled": lambda: Shuffled(options.seed)}[wanted]()


def build_dlrm(dataset: Dataset, options: TrainOptions, tiers: Tiers | None = None) -> RecModel:
    """DLRM with a table a feature; ids of any value find rows."""
    tables = tables_of(dataset, options.dim, Techniques.parse(options.techniques))
    store = EmbeddingStore(tables, row_optimizer(options), seed=options.seed, tiers=tiers)
    dense = DLRM(len(dataset.dense_names), dataset.features, options.dim, seed=options.seed)
    return RecModel(store, dense)


def row_optimizer(options: TrainOptions) -> RowOptimizer:
    """The tables' optimizer; row-wise Adagrad's state is scaled where replicas are averaged (arXiv 2508.03854)."""
    groups = Techniques.parse(options.techniques).replica_groups
    scaled = {"state_scale": float(groups)} if groups > 1 and options.optimizer == "rowwise_adagrad" else {}
    return optimizer(options.optimizer, lr=options.lr, **scaled)
