"""`pipeline`, part one: DBP and FWP on emulated links, against the law that a frozen window of N parts exposes 1/N.

A link between the ranks carries rows, gradients, keys and dense gradients; another joins each rank's host and device.
The compute of a batch is measured first, and both bandwidths are set so that row and gradient exchange need 60 % of it
and the retrieval 40 %. Write-back goes over the host's link too, and needs as much again.

Every number is obtained under an emulated link: a transfer takes at least as long as on it, while the CPU is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nestlab.benchmarks.link_setting import Scale, batch, compute_s, digest, full_model
from nestlab.benchmarks.progress import followed, tell
from nestlab.exchange import Channel, Link, LinkModel, Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.exchange.linked import Linked
from nestlab.launch import launch
from nestlab.pipeline import Lanes, Pipeline
from nestlab.pipeline.builders import build
from nestlab.pipeline.shape import Shape
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace, breakdowns, gather_traces
from nestlab.tracing.trace import NS_PER_MS

Figures = dict[str, Any]
ROWS = ("EMB_EXCHANGE", "GRAD_EXCHANGE")
_LATENCY_US = 20.0
_DEPTH = 5
_AFTER = 3  # batches behind the traced ones: what is looked up ahead beside the last of them


@dataclass(frozen=True)
class Variant:
    """What is turned on, and into how many parts a batch is divided."""

    dbp: bool
    fwp: bool
    parts: int

    @property
    def name(self) -> str:
        return " + ".join(name for name, on in (("DBP", self.dbp), ("FWP", self.fwp)) if on) or "plain"

    @property
    def shape(self) -> Shape:
        depth = _DEPTH if self.dbp else 1
        return Shape("dual_buffer", depth, micro_batches=self.parts, in_order=not (self.dbp or self.fwp))

    @property
    def techniques(self) -> Techniques:
        depth = _DEPTH if self.dbp else 1
        return Techniques(device_tier="dual_buffer", pipeline_depth=depth, micro_batches=self.parts)


@dataclass(frozen=True)
class Links:
    """Bandwidths in 10⁹ bits a second; None: no link is emulated."""

    network: float | None = None
    host: float | None = None


def variants(parts: Iterable[int]) -> list[Variant]:
    """With one part there is no window to freeze: plain and DBP alone. DBP with more is DBP + FWP."""
    found = []
    for n in parts:
        found.append(Variant(False, False, n))
        found += [Variant(True, False, n)] if n == 1 else [Variant(False, True, n), Variant(True, True, n)]
    return found


def run(world: int = 2, scale: Scale | None = None) -> dict[str, Any]:
    """Trains every variant on `world` ranks, one thread each; three to five minutes at the default scale."""
    with followed(f"part one: DBP and FWP on {world} ranks under emulated links; three to five minutes") as logs:
        outcome = launch(on_rank, (scale or Scale(),), world_size=world, log_dir=logs)[0]
    return {"bench": "pipeline_link", "how": "emulated link", **outcome}


def on_rank(scale: Scale) -> dict[str, Any] | None:
    """`measure` in a process of its own."""
    transport = CollectiveTransport.connect()
    try:
        return measure(transport, scale)
    except BaseException as error:
        transport.fail("bench pipeline", error)
        raise
    finally:
        transport.close()


def measure(transport: Transport, scale: Scale) -> dict[str, Any] | None:
    """What a rank does; rank 0 returns rows and summary."""
    torch.set_num_threads(1)
    tell("the compute of a batch, by which the links are set")
    links, known = _calibrate(transport, scale)
    runs: dict[Variant, list[Figures]] = defaultdict(list)
    for number in range(scale.rounds):
        for variant in variants(scale.parts):
            tell(f"round {number + 1} of {scale.rounds}: {variant.name}, N = {variant.parts}")
            trace, digest = _train(transport, scale, variant, links)
            if trace is not None:
                runs[variant].append({**_figures(trace, variant.parts), "digest": digest})
    if transport.mesh.rank:
        return None
    return {"rows": [{**_row(*each), **known} for each in runs.items()], "summary": _summary(runs, scale)}


def _calibrate(transport: Transport, scale: Scale) -> tuple[Links, dict[str, float]]:
    """Links for the compute of a batch and the bytes of a plain step, means over the ranks; and what they are."""
    compute = transport.all_gather(Channel.KEYS, torch.tensor([compute_s(scale)], dtype=torch.float64))
    trace, _ = _train(transport, replace(scale, warm=1, steps=2), Variant(False, False, 1), Links())
    moved = [0.0, 0.0]
    if trace is not None:
        steps = sum(event.stage == "PREPARE" for event in trace.events)  # of all ranks
        moved = [sum(e.nbytes for e in trace.events if e.stage in stages) / steps for stages in (ROWS, ("PREPARE",))]
    exchanged, retrieved = transport.all_gather(Channel.KEYS, torch.tensor(moved, dtype=torch.float64))[0].tolist()
    seconds = float(compute.mean())
    gbit_s = 8e-9 / seconds  # of one byte in the compute's time
    links = Links(exchanged * gbit_s / scale.exchange, retrieved * gbit_s / scale.retrieval)
    figures = {"network_gbit_s": links.network, "host_gbit_s": links.host, "calibrated_to_compute_ms": seconds * 1e3}
    known = {"ranks": transport.mesh.world_size, "threads_a_rank": 1}
    return links, known | {name: round(value, 4) for name, value in figures.items()}


def _train(transport: Transport, scale: Scale, variant: Variant, links: Links) -> tuple[Trace | None, str]:
    """The traced steps of all ranks (on rank 0), and a digest of every rank's bits at the end."""
    model = full_model(scale, transport.mesh, _link(links.host))
    pipeline = Pipeline(
        model,
        torch.optim.SGD(model.dense.parameters(), lr=0.05),
        variant.techniques,
        schedule=build(variant.shape),
        executor=Lanes(),
        recorder=Recorder(scale.warm, scale.steps + 1, rank=transport.mesh.rank),  # the first one's begin is not known
        transport=Linked(transport, _link(links.network)) if links.network else transport,
    )
    rank = transport.mesh.rank
    for _ in pipeline.run(batch(scale, rank, number) for number in range(scale.warm + scale.steps + _AFTER)):
        pass
    about = {"dataset": "ids drawn evenly (SYNTHETIC)", "how": "emulated link" if links.network else "measured"}
    trace = gather_traces(transport, pipeline.trace(about))
    own = torch.frombuffer(bytearray(digest(model, scale.names)), dtype=torch.uint8)
    return trace, transport.all_gather(Channel.KEYS, own).numpy().tobytes().hex()


def _link(gbit_s: float | None) -> Link | None:
    return Link(LinkModel(_LATENCY_US, gbit_s)) if gbit_s else None


def _figures(trace: Trace, n: int) -> Figures:
    """Medians over the steps of all ranks, shares of the step over all of them; times in ms a step."""
    steps = [part for number in trace.batches[1:] for part in breakdowns(trace, batch=number)]
    span, compute = (sum(getattr(part, name) for part in steps) for name in ("span", "compute"))
    time = {name: sum(part.action_time.get(name, 0) for part in steps) for name in (*ROWS, "PREPARE", "WRITEBACK")}
    written = [part.exposed.get("WRITEBACK", 0) for part in steps]
    return {
        "step_ms": _median(part.span / NS_PER_MS for part in steps),
        "compute_ms": _median(part.compute / NS_PER_MS for part in steps),
        "exchange_of_compute": sum(time[stage] for stage in ROWS) / compute,
        "retrieval_of_compute": time["PREPARE"] / compute,
        "writeback_of_compute": time["WRITEBACK"] / compute,
        "exposed_times_n": _median(n * part.exposed_of_exchange for part in steps),
        "exposed_times_n_of_sums": n * sum(part.exposed_comm["rows"] for part in steps) / sum(time[s] for s in ROWS),
        "exposed_lookup_share": sum(part.exposed_of("lookup") for part in steps) / span,
        "exposed_dense_share": sum(part.exposed_comm["dense"] for part in steps) / span,
        "waiting_share": sum(part.exposed_waiting for part in steps) / span,
        "idle_share": sum(part.idle for part in steps) / span,
        "exposed_writeback_ms": _median(ns / NS_PER_MS for ns in written),
    }


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _row(variant: Variant, several: list[Figures]) -> Figures:
    """Medians over the rounds, and the spread of what the summary reports."""
    values = {name: [each[name] for each in several] for name in several[0] if name != "digest"}
    middle = {name: round(_median(found), 4) for name, found in values.items()}
    for name in ("step_ms", "exposed_times_n"):
        middle |= {f"{name}_least": round(min(values[name]), 4), f"{name}_most": round(max(values[name]), 4)}
    digests = {each["digest"] for each in several}
    known = digests.pop()[:16] if len(digests) == 1 else "differs from run to run"
    return {"variant": variant.name, "N": variant.parts, **middle, "digest": known, "rounds": len(several)}


def _summary(runs: dict[Variant, list[Figures]], scale: Scale) -> dict[str, Any]:
    """At N = `reported`, DBP and FWP; the law at every N beside it."""
    both, plain = runs[_both(scale.reported)], runs[Variant(False, False, 1)]
    by_n, sums_by_n = (
        {str(n): _middle(runs[_both(n)], name) for n in scale.parts}
        for name in ("exposed_times_n", "exposed_times_n_of_sums")
    )
    pairs = list(zip(plain, both, strict=True))  # of one round each
    speedups = [a["step_ms"] / b["step_ms"] for a, b in pairs]
    without = [(a["step_ms"] - a["exposed_writeback_ms"]) / b["step_ms"] for a, b in pairs]
    digests = [{e["digest"] for v, several in runs.items() if v.parts == n for e in several} for n in scale.parts]
    return {
        "exposed_comm_vs_limit": by_n[str(scale.reported)],
        "exposed_comm_vs_limit_by_n": by_n,
        "exposed_comm_vs_limit_of_sums_by_n": sums_by_n,  # a step that others on the machine held up weighs more
        "exposed_lookup_share": _middle(both, "exposed_lookup_share"),
        "bit_equal": all(len(found) == 1 for found in digests),
        "speedup_vs_plain": round(_median(speedups), 3),
        "speedup_vs_plain_least": round(min(speedups), 3),
        "speedup_vs_plain_most": round(max(speedups), 3),
        "speedup_vs_plain_without_writeback": round(_median(without), 3),
        "compute_ms": _middle(both, "compute_ms"),
    }


def _both(n: int) -> Variant:
    return Variant(True, n > 1, n)


def _middle(several: list[Figures], name: str) -> float:
    return round(_median(each[name] for each in several), 4)
