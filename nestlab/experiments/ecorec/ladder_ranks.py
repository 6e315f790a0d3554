"""What a rank of the ladder does: sets the link, trains every rung on the same batches in turns, compares weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestlab import device
from nestlab.batch import Batch
from nestlab.exchange import Link, LinkModel, Transport
from nestlab.exchange.linked import Linked
from nestlab.experiments.ecorec.ladder_model import DATA, LR, batch, build_model
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.nestpipe.links import EMULATED, LATENCY_US
from nestlab.experiments.ranks import joined, of_all
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import COMPUTE, Breakdown, Recorder, Trace, breakdowns, gather_traces
from nestlab.tracing.memory import DEVICE
from nestlab.tracing.trace import NS_PER_MS

Figures = dict[str, Any]
WARM = 1  # batches of a turn before the traced ones, whose first one's begin is not known
COMPUTED, EXCHANGED = ("TT_FORWARD", "TT_BACKWARD"), ("TT_EXCHANGE", "TT_GRAD_EXCHANGE")


@dataclass(frozen=True)
class Rung:
    """One way to go through the tables of a rank."""

    name: str
    flags: Techniques

    @property
    def groups(self) -> int:
        return self.flags.table_groups

    @property
    def by_samples(self) -> bool:
        return self.flags.group_by == "samples"


@dataclass
class Climbed:
    """What rank 0 saw: rows of all rungs and rounds, and of each rung the newest trace of all ranks."""

    rows: list[Figures] = field(default_factory=list)
    traces: dict[str, Trace] = field(default_factory=dict)


@dataclass(eq=False)
class Climber:
    """A pipeline that takes turns with those of other rungs. `trained`: batches so far."""

    rung: Rung
    pipeline: Pipeline
    trained: int = 0

    def learnt(self) -> dict[str, Tensor]:
        """This rank's cores, states too, and the dense part, by name."""
        model = self.pipeline.model
        own = model.embedding.whole.own.values()
        cores = {f"{table.config.name}.{k}": core for table in own for k, core in enumerate(table.cores.records)}
        return cores | {name: weight.detach() for name, weight in model.dense.named_parameters()}

    @property
    def work(self) -> tuple[int, int]:
        """Operations so far, and the most bytes between two products."""
        works = [table.work for table in self.pipeline.model.embedding.whole.own.values()]
        return sum(work.operations for work in works), max(work.peak for work in works)


def on_rank(settings: Settings, rungs: tuple[Rung, ...]) -> Climbed:
    """`climb` in a process of its own."""
    with joined(settings.device, "the ladder of notebook 40_ecorec") as transport:
        return climb(transport, settings, rungs)


def climb(transport: Transport, settings: Settings, rungs: tuple[Rung, ...]) -> Climbed:
    """All ranks call it; the first rung is what the others are compared with."""
    rank, count = transport.mesh.rank, WARM + 1 + settings.ladder_steps
    batches = [batch(settings, rank, number) for number in range(count)]
    gbit_s, compute_ms = _calibrate(transport, settings, rungs[0], batches)
    linked = Linked(transport, Link(LinkModel(LATENCY_US, gbit_s) if gbit_s else None))  # one rank alone sends nothing
    climbers = [_climber(linked, settings, rung) for rung in rungs]
    found = Climbed()
    for number in range(settings.repeats):
        first = number % len(climbers)  # of the turns: what comes after what differs from round to round
        for climber in climbers[first:] + climbers[:first]:
            row, trace = _turn(transport, climber, batches)
            found.rows.append({"case": climber.rung.name, "round": number, **row})
            found.traces |= {} if trace is None else {climber.rung.name: trace}
    known = {"how": EMULATED, "data": DATA, "network_gbit_s": gbit_s, "calibrated_compute_ms": compute_ms}
    far = {each.rung.name: _difference(transport, each, climbers[0]) for each in climbers}
    order = [rung.name for rung in rungs]
    found.rows = [
        {**row, **far[row["case"]], **known}
        for row in sorted(found.rows, key=lambda row: (row["round"], order.index(row["case"])))
    ]
    return found


def _climber(transport: Transport, settings: Settings, rung: Rung) -> Climber:
    model, where = build_model(settings), device.resolve(settings.device)
    model.dense.to(where)
    sgd = torch.optim.SGD(model.dense.parameters(), lr=LR)
    executor = Lanes() if rung.groups > 1 else Inline()
    return Climber(rung, Pipeline(model, sgd, rung.flags, executor=executor, device=where, transport=transport), 0)


def _calibrate(transport: Transport, settings: Settings, rung: Rung, batches: list[Batch]) -> tuple[float, float]:
    """10⁹ bits a second on which rows and gradients that leave a rank need the share `exchange` of a step's
    computation, and that in ms. By the quickest step: others on the machine only slow one down. Means over the ranks.
    """
    climber = _climber(transport, settings, rung)
    own = _trained(climber, batches, transport.mesh.rank)
    steps = {event.batch for event in own.events}
    computed = [sum(e.duration_ns for e in own.events if e.batch == t and e.lane == COMPUTE) for t in steps]
    moved = sum(event.nbytes for event in own.events if event.stage in EXCHANGED) / len(steps)
    means = {n: float(v.mean()) for n, v in of_all(transport, {"ns": float(min(computed)), "bytes": moved}).items()}
    return 8.0 * means["bytes"] / (settings.exchange * means["ns"]), means["ns"] / NS_PER_MS


def _trained(climber: Climber, batches: list[Batch], rank: int) -> Trace:
    """This rank's trace of one pass over the batches."""
    pipeline = climber.pipeline
    pipeline.recorder = Recorder(climber.trained + WARM, len(batches) - WARM, rank=rank)
    for _ in pipeline.run(batches):
        climber.trained += 1
    return pipeline.trace({"dataset": DATA, "how": EMULATED})


def _turn(transport: Transport, climber: Climber, batches: list[Batch]) -> tuple[Figures, Trace | None]:
    of_all(transport, {"begin": 0.0})  # all begin together
    before, _ = climber.work
    own = _trained(climber, batches, transport.mesh.rank)
    operations, peak = climber.work
    by_kind = climber.pipeline.memory(own).set_index("kind")["peak_bytes"]
    figures = {
        "operations": (operations - before) / len(batches),
        "intermediate_bytes": float(peak),
        "exchange_bytes": float(by_kind["exchange"]),
        "tables_bytes": float(by_kind["tables"]),
        "peak_bytes": float(by_kind["tables"] + by_kind[DEVICE] + peak),
        "sent_bytes": sum(e.nbytes for e in own.events if e.stage in EXCHANGED) / (len(batches) - WARM),
    }
    most = {name: float(np.max(each)) for name, each in of_all(transport, figures).items()}
    trace = gather_traces(transport, own)
    return most | ({} if trace is None else step_figures(trace)), trace


def step_figures(trace: Trace) -> Figures:
    """Means over the middle half of the steps of all ranks, in ms; the parts sum to the step.

    `exchange_ms` is the time in which rows or gradients of tensor-train tables were under way; what of it the compute
    lane waited for is `exposed_rows_ms`.
    """
    steps = [part for number in trace.batches[1:] for part in breakdowns(trace, batch=number)]
    cut = len(steps) // 4
    middle = sorted(steps, key=lambda part: part.span)[cut : len(steps) - cut]
    rows = [_parts(part) for part in middle]
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    spans = [part.span / NS_PER_MS for part in steps]
    return means | {"step_ms_p10": float(np.quantile(spans, 0.1)), "step_ms_p90": float(np.quantile(spans, 0.9))}


def _parts(part: Breakdown) -> Figures:
    tables = sum(part.action_time.get(stage, 0) for stage in COMPUTED)
    rows, ids = part.exposed_comm["rows"], part.exposed_of("lookup")
    times = {
        "step_ms": part.span,
        "tables_ms": tables,
        "dense_ms": part.compute - tables,
        "exposed_rows_ms": rows,
        "exposed_ids_ms": ids,
        "rest_ms": part.idle - rows - ids,
        "exchange_ms": sum(part.action_time.get(stage, 0) for stage in EXCHANGED),
        "waiting_ms": part.exposed_waiting,
    }
    return {name: ns / NS_PER_MS for name, ns in times.items()}


def _difference(transport: Transport, climber: Climber, reference: Climber) -> Figures:
    """Over all ranks; tables lie where they lie under every rung."""
    own, other = climber.learnt(), reference.learnt()
    if own.keys() != other.keys():
        raise RuntimeError(f"{climber.rung.name}: rank {transport.mesh.rank} has other tables than before")
    far = max(float((own[name] - other[name]).abs().max()) for name in own)
    equal = all(torch.equal(own[name], other[name]) for name in own)
    every = of_all(transport, {"far": far, "unequal": float(not equal)})
    return {"difference": float(every["far"].max()), "bit_equal": not every["unequal"].any()}
