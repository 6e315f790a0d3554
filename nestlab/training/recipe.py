"""From options to something that trains: data, model, optimizers, pipeline and ranks, all from one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from nestlab import device, plugins
from nestlab.data import Dataset, DatasetInfo, Loader
from nestlab.embedding import Tiers
from nestlab.errors import UserError
from nestlab.exchange import Link, LinkModel, LocalTransport, Transport
from nestlab.launch import environment
from nestlab.models import RecModel
from nestlab.pipeline import Inline, Lanes, Pipeline, Shuffled
from nestlab.pipeline.dense import Clipped
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace
from nestlab.tracing.gather import gather_traces
from nestlab.training.checkpoint import Trained
from nestlab.training.continuing import facts_of, saving_of
from nestlab.training.families import build_model, material, open_data
from nestlab.training.fit import Report, Saving, fit
from nestlab.training.history import History
from nestlab.training.looks import Judge
from nestlab.training.options import SaveOptions, TrainOptions, check_data

# The first batches compile kernels and fill allocators; what a step costs shows after them.
WARM_UP_BATCHES = 4


@dataclass(frozen=True)
class Recipe:
    """What `assemble` made of the options. `close` frees the connection to other ranks; `with` does so at its end.

    Attributes:
        dataset: that was opened.
        info: of its data as the model reads them: of a retrieval model, of windows.
        train: this rank's slices.
        judge: of held-out data.
        protocol: how the judge's figures are taken, for `Run.protocol`.
        heldout: how many samples are held out, and which.
    """

    options: TrainOptions
    dataset: Dataset
    info: DatasetInfo
    train: Loader
    judge: Judge
    model: RecModel
    pipeline: Pipeline
    transport: Transport = field(default_factory=LocalTransport)
    saving: Saving = field(default_factory=Saving)
    protocol: Mapping[str, str | int] = field(default_factory=dict)
    heldout: str = ""

    def fit(self, report: Report = lambda line: None) -> History:
        return fit(self.pipeline, self.train, self.judge, self.options.fit, report, self.saving)

    @property
    def standing(self) -> tuple[int, int]:
        """Steps trained, and steps in all."""
        done = self.saving.history.step if self.saving.history else 0
        return done, self.options.fit.steps(len(self.train))

    def trace(self) -> Trace:
        """This rank's."""
        return self.pipeline.trace({"dataset": self.info.title, "how": self.options.how})

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

    Raises:
        UserError: the data cannot feed the model, or what was saved is another training.
    """
    check_data(options)
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
    techniques, mesh, where = Techniques.parse(options.techniques), transport.mesh, device.resolve(options.device)
    dataset = open_data(options)
    made = material(options, dataset, mesh)
    link = Link(LinkModel.parse(options.link)) if options.link else None
    model = build_model(made, options, Tiers.of(techniques, where, link))
    model.dense.to(where)  # before its optimizer, whose state may come from a checkpoint, looks where it lies
    adam = torch.optim.Adam(model.dense.parameters(), lr=options.dense_lr)
    facts = facts_of(options, dataset) | made.fixed
    saved = saving_of(saves, Trained(model, adam, transport, where), facts, report)
    steps = options.fit.steps(len(made.train)) - (saved.begin.history.step if saved.begin else 0)
    pipeline = Pipeline(
        model,
        Clipped(adam, options.clip_norm) if options.clip_norm else adam,
        techniques,
        executor=_executor(options, techniques),
        device=where,
        recorder=Recorder(min(WARM_UP_BATCHES, steps // 2), options.trace_batches, mesh.rank),
        transport=transport,
    )
    train = made.train.slice(mesh.rank, mesh.world_size)
    parts = (dataset, made.info, train, made.judge, model, pipeline, transport, saved)
    return Recipe(options, *parts, protocol=made.protocol, heldout=made.heldout)


def _executor(options: TrainOptions, techniques: Techniques) -> Inline | Lanes | Shuffled:
    wanted = options.executor
    if wanted == "auto":
        wanted = (
            "lanes"
            if max(techniques.pipeline_depth, techniques.micro_batches, techniques.table_groups) > 1
            else "inline"
        )
    return {"inline": Inline, "lanes": Lanes, "shuffled": lambda: Shuffled(options.seed)}[wanted]()
