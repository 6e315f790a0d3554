"""One training on the ranks that are there, and the figures that it gives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nestlab import device
from nestlab.embedding import RowOptimizer, Tiers
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.experiments.nestpipe.cases import Case
from nestlab.experiments.nestpipe.counting import Counted
from nestlab.experiments.nestpipe.links import Links
from nestlab.experiments.nestpipe.model import build_model, dense_optimizer
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.experiments.nestpipe.stream import Stream
from nestlab.experiments.ranks import TIMEOUT_S, of_all
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.tracing import Recorder, Trace, gather_traces, step_table
from nestlab.tracing.memory import DEVICE, KINDS

Figures = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where trainings run: the ranks, and what they train.

    Attributes:
        transport: of one replica group.
        grouped: of several, where a case asks for them; None: there is one rank.
    """

    settings: Settings
    stream: Stream
    transport: Transport
    grouped: Transport | None = None

    @classmethod
    def on(cls, settings: Settings, stream: Stream, transport: Transport, groups: int = 1) -> Bench:
        """`groups`: above 1, the same ranks are joined once more, in so many replica groups."""
        grouped = CollectiveTransport.connect(groups, settings.device, TIMEOUT_S) if groups > 1 else None
        return cls(settings, stream, transport, grouped)

    def transport_of(self, case: Case) -> Transport:
        if case.flags.replica_groups == 1:
            return self.transport
        assert self.grouped is not None
        return self.grouped

    def close(self) -> None:
        if self.grouped is not None:
            self.grouped.close()


@dataclass(frozen=True)
class How:
    """How a case is trained.

    Attributes:
        links: emulated, or none.
        dim, layers: of the model; 0: the settings'.
        rows: the row optimizer; None: Adagrad.
        dtype: float64 to tell rounding from drift.
        batches: how many; 0: all of the stream.
        counts: bytes by channel.
    """

    links: Links = field(default_factory=Links)
    dim: int = 0
    layers: int = 0
    rows: RowOptimizer | None = None
    dtype: torch.dtype = torch.float32
    batches: int = 0
    counts: bool = False


@dataclass(frozen=True)
class Trained:
    """A finished training of this rank. `trace` is of all ranks, on rank 0 alone; `seconds` the whole pass; `sent`
    bytes by channel, where they were counted."""

    pipeline: Pipeline
    own_trace: Trace
    trace: Trace | None
    seconds: float
    batches: int
    sent: Mapping[str, int] = field(default_factory=dict)


def train(bench: Bench, case: Case, how: How | None = None) -> Trained:
    """Every rank calls it. The traced window begins one batch early: the begin of its first step is not known."""
    how, s = how or How(), bench.settings
    plain = bench.transport_of(case)
    transport, where = how.links.between_ranks(plain), device.resolve(s.device)
    counted = Counted(transport)
    tiers = Tiers.of(case.flags, where, how.links.to_device())
    shape = {"dim": how.dim or s.dim, "layers": how.layers or s.layers}
    model = build_model(bench.stream, **shape, mesh=plain.mesh, tiers=tiers, rows=how.rows, dtype=how.dtype)
    model.dense.to(where)
    pipeline = Pipeline(
        model,
        dense_optimizer(model.dense.parameters()),
        case.flags,
        schedule=case.schedule,
        executor=Lanes() if case.overlaps else Inline(),
        device=where,
        recorder=Recorder(s.warm - 1, s.steps + 1, rank=plain.mesh.rank),
        transport=counted if how.counts else transport,
    )
    batches = bench.stream.batches[: how.batches or None]
    of_all(bench.transport, {"begin": 0.0})  # all begin together
    started = time.perf_counter()
    for _ in pipeline.run(batches):
        pass
    seconds = time.perf_counter() - started
    about = {
        "dataset": bench.stream.title,
        "how": how.links.how,
        "replicas": plain.mesh.replicas,
        "shards": plain.mesh.shards,
    }
    own = pipeline.trace(about)
    return Trained(pipeline, own, gather_traces(bench.transport, own), seconds, len(batches), counted.sent)


def figures(bench: Bench, case: Case, trained: Trained) -> Figures:
    """A row of the ablation: the article's table (means over the ranks), what was sent, and peaks. All ranks call it;
    times are rank 0's to tell, and missing elsewhere."""
    told = _moved(bench, trained) | _peaks(bench, trained)
    if trained.trace is not None:
        told |= step_figures(trained.trace)
        told["samples_s"] = 1e3 * bench.settings.batch_size * bench.settings.world_size / told["step_ms"]
    return {"case": case.name, "parts": case.flags.micro_batches, **told}


def step_figures(trace: Trace) -> Figures:
    """The step of all ranks (means), and the time of single stages that the article speaks of, in ms a step."""
    table = step_table(trace).set_index("rank").loc["mean"]
    found = {name: float(value) for name, value in table.items() if name != "behind_slowest"}
    steps = max(1, sum(event.stage == "UPDATE" for event in trace.events))
    for stage in ("LOAD", "ROUTE", "PREPARE", "COMMIT", "WRITEBACK", "EMB_EXCHANGE", "GRAD_EXCHANGE"):
        spent = sum(event.duration_ns for event in trace.events if event.stage == stage)
        found[f"{stage.lower()}_ms"] = spent / 1e6 / steps
    return found


def _moved(bench: Bench, trained: Trained) -> Figures:
    """Bytes and rows a step and rank, means over the ranks."""
    pipeline, batches = trained.pipeline, trained.batches
    wire, counters = pipeline.wire, pipeline.model.embedding.counters
    width = pipeline.model.embedding.groups[0].record_width * pipeline.model.embedding.dtype.itemsize
    own = {
        "sent_rows_bytes": wire.rows,
        "sent_grads_bytes": wire.grads,
        "full_bytes": wire.rows_full + wire.grads_full,
        "received_rows": wire.received,
        "unique_keys": wire.unique,
        "owned_keys": counters.hits + counters.misses,
        "fetched_keys": counters.misses,
        "copied_keys": counters.hits,
        "copied_bytes": counters.hits * width,
    }
    return {name: float(np.mean(each)) / batches for name, each in of_all(bench.transport, own).items()}


def _peaks(bench: Bench, trained: Trained) -> Figures:
    """Peak bytes of the rank that has most, by kind."""
    by_kind = trained.pipeline.memory(trained.own_trace).set_index("kind")["peak_bytes"]
    own = {f"peak_{kind.replace(' ', '_')}_bytes": float(by_kind[kind]) for kind in (*KINDS, DEVICE) if kind != DEVICE}
    own["peak_device_bytes"] = float(by_kind[DEVICE])
    return {name: float(np.max(each)) for name, each in of_all(bench.transport, own).items()}
