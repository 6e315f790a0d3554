"""`pipeline`, part two: our step beside torchrec's pipelines and beside the dense part alone; CPU, gloo, loopback.

All sides train the same batches from the same start weights, on the same ranks, one thread each, in turns: a round
gives each side a run of batches, of which the first fill its pipeline and the last keep it full, and those between are
timed. torchrec's tables and ours hold all their rows before the first step.

torchrec's planner refuses row-wise sharding on the CPU, so all its plans are made by hand; its index deduplication has
no CPU kernel, for which ours stands in, in torchrec's favour (`nestlab.interop.baselines`).

Predicted before the first run, from a prototype: dense part alone 0.116 s, torchrec 0.196 s, ours 0.15 s; techniques
that hide work bring nothing where neither a link nor another processor is there to do it meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from nestlab.benchmarks.pipeline_sides import Batches, Floor, Ours, Setting, Side, Theirs
from nestlab.benchmarks.progress import followed, tell
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.launch import launch
from nestlab.techniques import Techniques

HOW = "measured, CPU, gloo"
_DBP = {"device_tier": "dual_buffer", "pipeline_depth": 5}
OURS: tuple[tuple[str, Techniques, bool], ...] = (
    ("plain", Techniques(), False),
    ("depth 5", Techniques(pipeline_depth=5), True),
    ("DBP", Techniques(**_DBP), True),
    ("FWP, N = 2", Techniques(micro_batches=2), True),
    ("DBP + FWP, N = 2", Techniques(**_DBP, micro_batches=2), True),
)
THEIRS: tuple[tuple[str, str, bool], ...] = (
    ("base", "table_wise", False),
    ("base", "table_wise", True),
    ("sparse_dist", "table_wise", False),
    ("sparse_dist", "table_wise", True),
    ("sparse_dist", "row_wise", False),
)


@dataclass(frozen=True)
class Scale:
    """How much is measured: `rounds` of `fill` + `timed` + `full` batches a side, after one round untimed."""

    setting: Setting = field(default_factory=Setting)
    ours: tuple[tuple[str, Techniques, bool], ...] = OURS
    theirs: tuple[tuple[str, str, bool], ...] = THEIRS
    rounds: int = 9
    fill: int = 2
    timed: int = 5
    full: int = 4
    timeout_s: float = 3600.0

    @property
    def batches(self) -> int:
        return self.fill + self.timed + self.full


@dataclass
class _Taken:
    """Of one side, a figure a round: wall seconds a step (of the slowest rank), CPU seconds a step (mean of the ranks),
    and the last loss of the run."""

    step_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)


def run(world: int = 2, scale: Scale | None = None) -> dict[str, Any]:
    """Measures on `world` ranks of this machine: `rows` and `summary`.

    At the default scale it takes about five minutes, where nobody else computes, and 14 GB.
    """
    scale = scale or Scale()
    title = f"part two: our step beside torchrec's on {world} ranks; about five minutes, 14 GB"
    with followed(title) as logs:
        return launch(measure, (scale,), world_size=world, timeout_s=scale.timeout_s, log_dir=logs)[0]


def measure(scale: Scale) -> dict[str, Any]:
    """What a rank does."""
    torch.set_num_threads(1)
    transport = CollectiveTransport.connect(timeout_s=300.0)
    try:
        tell("the tables of all sides are filled")
        sides, missing = _sides(scale, transport)
        taken = {side.name: _Taken() for side in sides}
        meeting = _Meeting()
        make = Batches(scale.setting, transport.mesh.rank)
        for number in range(scale.rounds + 1):
            tell(f"round {number} of {scale.rounds}" if number else "a round untimed")
            batches = [make(number * scale.batches + i) for i in range(scale.batches)]
            for side in sides:
                figures = _run_of(side, batches, scale, meeting)
                if number:
                    _note(taken[side.name], figures)
        stages = {side.name: side.stages(batches) for side in sides if isinstance(side, Ours)}
        return _outcome(taken, stages, missing, scale, transport)
    finally:
        transport.close()


def _sides(scale: Scale, transport: Transport) -> tuple[list[Side], str]:
    """All of them, and why torchrec is missing, if it is."""
    from nestlab.interop import torchrec

    usable, reason = torchrec.available()
    ours = [Ours(f"ours {name}", scale.setting, t, transport, lanes) for name, t, lanes in scale.ours]
    theirs = [Theirs(scale.setting, *variant) for variant in scale.theirs] if usable else []
    return [Floor(scale.setting), *ours, *theirs], "" if usable else reason


class _Meeting:
    """Where the ranks meet between steps: a group of its own, since lanes go on with theirs meanwhile."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def all_gather(self, mine: Tensor) -> Tensor:
        """[ranks, k] of `mine` [k]."""
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine, group=self._group)
        return torch.stack(everyone)


def _run_of(side: Side, batches: list, scale: Scale, meeting: _Meeting) -> tuple[float, float, float]:
    """(wall seconds a step of the slowest rank, CPU seconds a step, last loss)."""
    side.begin(batches)
    for _ in range(scale.fill):
        side.step()
    meeting.all_gather(torch.zeros(1))  # all begin together
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(scale.timed):
        side.step()
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    *_, loss = _rest(side)
    mine = torch.tensor([wall / scale.timed, cpu / scale.timed, loss], dtype=torch.float64)
    everyone = meeting.all_gather(mine)
    return float(everyone[:, 0].max()), float(everyone[:, 1].mean()), float(everyone[:, 2].mean())


def _rest(side: Side) -> Iterator[float]:
    """The losses of the batches that are left."""
    while True:
        try:
            yield side.step()
        except StopIteration:
            return


def _note(taken: _Taken, figures: tuple[float, float, float]) -> None:
    for values, value in zip((taken.step_s, taken.cpu_s, taken.loss), figures, strict=True):
        values.append(value)


def _outcome(taken: dict[str, _Taken], stages: dict, missing: str, scale: Scale, transport: Transport) -> dict:
    floor = Floor.name
    ours = min((n for n in taken if n.startswith("ours")), key=lambda n: np.median(taken[n].step_s))
    theirs = min((n for n in taken if n.startswith("torchrec")), key=lambda n: np.median(taken[n].step_s), default=None)
    rows = [_row(name, taken, theirs) for name in taken]
    summary = {
        "speedup_vs_torchrec": None if theirs is None else _ratio(taken, theirs, ours)[1],
        "speedup_vs_torchrec_p10_p90": None if theirs is None else _ratio(taken, theirs, ours)[::2],
        "step_over_dense": _ratio(taken, ours, floor)[1],
        "step_over_dense_p10_p90": _ratio(taken, ours, floor)[::2],
        "ours": ours,
        "torchrec": theirs or missing,
        "dense_alone_s": round(float(np.median(taken[floor].step_s)), 4),
        "largest_loss_difference": _loss_difference(taken),
        "our_stages_ms": stages[ours],
        "ranks": transport.mesh.world_size,
        "threads_a_rank": 1,
        "title": "DLRM, CPU, gloo, loopback",
    }
    return {"rows": rows, "summary": summary}


def _row(name: str, taken: dict[str, _Taken], theirs: str | None) -> dict[str, Any]:
    low, middle, high = np.percentile(taken[name].step_s, [10, 50, 90]).round(4).tolist()
    row = {"side": name, "step_s": middle, "p10": low, "p90": high}
    row["cpu_s"] = round(float(np.median(taken[name].cpu_s)), 4)
    row["over_dense"] = _ratio(taken, name, Floor.name)[1]
    if theirs is not None:
        row["speedup_vs_torchrec"] = _ratio(taken, theirs, name)[1]
    return {**row, "rounds": len(taken[name].step_s)}


def _ratio(taken: dict[str, _Taken], upper: str, lower: str) -> list[float]:
    """Step of one side over step of another, round by round: 10th percentile, median, 90th."""
    ratios = np.array(taken[upper].step_s) / np.array(taken[lower].step_s)
    return np.percentile(ratios, [10, 50, 90]).round(3).tolist()


def _loss_difference(taken: dict[str, _Taken]) -> float:
    """Between any two sides that train the tables, relative, at the end of any round."""
    losses = np.array([figures.loss for name, figures in taken.items() if name != Floor.name])
    return float(f"{((losses.max(axis=0) - losses.min(axis=0)) / losses.min(axis=0)).max():.2g}")
