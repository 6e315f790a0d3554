"""What the notebook calls: each method shows one thing and keeps it in the run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting, results
from nestlab.errors import UserError
from nestlab.experiments.mechanisms import clock, clusters, drift, driving, rounding, toy, window
from nestlab.experiments.mechanisms.film import film
from nestlab.experiments.mechanisms.lanes import side_by_side
from nestlab.experiments.tables import Shown
from nestlab.pipeline import Schedule, Stage, build
from nestlab.techniques import Techniques
from nestlab.tracing import plot_timeline

# How long the curve of the drift is, and in how many random orders.
SCALES = {"smoke": (16, 1), "quick": (40, 3), "paper": (200, 5)}
_TIER = "device_tier=dual_buffer"
LADDER = {
    "plain": _TIER,
    "DBP": f"{_TIER},pipeline_depth=5",
    "FWP(4)": f"{_TIER},micro_batches=4",
    "DBP + FWP(4)": f"{_TIER},pipeline_depth=5,micro_batches=4",
}
_RULES = ("none", "greedy")


@dataclass(eq=False)
class Mechanisms:
    """An open run; `finish` closes it.

    Attributes:
        steps, orders: of the drift's curve.
        seed: of its batches and weights, and of the rows that are rounded.
    """

    run: results.Run
    steps: int
    orders: int
    seed: int
    _figures: dict[str, float] = field(default_factory=dict)
    _drift: pd.DataFrame | None = None

    def batches(self) -> pd.DataFrame:
        """The data: a row a batch."""
        return self._kept("batches", toy.overview())

    def schedule(self, flags: str) -> str:
        """The step of these flags as text: actions by lane, then the edges that order them, each with its reason."""
        return str(build(Techniques.parse(flags)))

    def actions(self, flags: str) -> str:
        """The same in short: a line a lane, and how many edges there are."""
        schedule = build(Techniques.parse(flags))
        lines = []
        for lane in schedule.lanes:
            own = [str(entry.action(0).key).replace("(0", "(t") for entry in schedule.entries if entry.lane is lane]
            lines.append(f"{lane:8} {'  '.join(own)}")
        required = sum(edge.required for edge in schedule.edges)
        return "\n".join([*lines, f"and {required} required edges, {len(schedule.edges) - required} chosen ones"])

    def film(self, flags: str) -> Figure:
        """The three batches under these flags: every place of records after each action that moves some."""
        return self._film(driving.drive(flags), flags or "plain", flags or "plain")

    def buffers(self, flags: str) -> pd.DataFrame:
        """The film as a table: a row an action, a column a place, `id:updates` a record, `*` where it changed,
        `–` where room is left and no record is there yet."""
        return self._kept(f"buffers {_slug(flags)}", driving.in_words(driving.drive(flags)))

    def film_without(self, flags: str, edge: str, late: str) -> Figure:
        """The film of a schedule that lacks an edge, where stage `late` comes as late as the other edges allow."""
        return self._film(self._broken(flags, edge, late), f"without {edge}, {late} late", f"without {edge}")

    def wrong_reads(self, flags: str, edge: str, late: str) -> pd.DataFrame:
        """What the forward passes of that film read wrongly: updates in the record, and in the plain loop's."""
        wrong = driving.wrong_reads(self._broken(flags, edge, late))
        self._figures["wrong_reads_without_an_edge"] = len(wrong)
        return self._kept("wrong_reads", wrong)

    def stale_reads(self, flags: str) -> pd.DataFrame:
        """What a schedule that is stale by intention reads, beside the plain loop."""
        return self._kept("stale_reads", driving.wrong_reads(driving.drive(flags)))

    def plans(self, flags: str) -> str:
        """What the planner of the slot cache decided for each batch."""
        return "\n".join(driving.drive(flags).attrs["plans"])

    def lanes(self) -> Figure:
        """plain, DBP, FWP and both over one axis of time: a row a lane."""
        title = _title(
            "The same four batches in four schedules (compute: forward, backward, update)", clock.HOW, "no data"
        )
        traces = {name: clock.virtual(schedule, 4) for name, schedule in _ladder().items()}
        return self._drawn("lanes", side_by_side(traces, title))

    def timeline(self, flags: str, batches: int = 2) -> Figure:
        """A few steps of one schedule once its pipeline is full, and what computation waits for."""
        trace = clock.virtual(build(Techniques.parse(flags)), 12)
        return self._drawn("timeline", plot_timeline(trace, batches=batches))

    def step_times(self) -> pd.DataFrame:
        """Milliseconds a step on the virtual clock, and for what of it computation waits."""
        frame = clock.step_times(_ladder())
        for name, key in (("plain", "plain"), ("DBP + FWP(4)", "both")):
            self._figures[f"virtual_ms_a_step_{key}"] = float(frame.set_index("schedule")["ms a step"][name])
        return self._kept("step_times", frame)

    def window(self, flags: str, batch: int = 1) -> pd.DataFrame:
        """One batch through the frozen window, exchange by exchange."""
        frame = window.frozen_window(flags)
        return self._kept("frozen_window", frame[frame["batch"] == batch].drop(columns="batch").reset_index(drop=True))

    def clusters(self) -> Figure:
        """Batch 0 in two micro-batches, as it came and clustered."""
        return self._drawn("clusters", clusters.picture(_RULES, _title("Batch 0 in two micro-batches", "computed")))

    def cluster_costs(self) -> pd.DataFrame:
        """The rows that each micro-batch asks for, with each rule, beside the least that is possible."""
        return self._kept("cluster_costs", clusters.costs((*_RULES, "kmeans")))

    def rounded_row(self, kind: str = "int8") -> pd.DataFrame:
        """One row of eight weights before and after the wire."""
        return self._kept(f"rounded_{kind}", rounding.one_row(kind, self.seed))

    def rounding(self) -> pd.DataFrame:
        """Bytes and error of each codec."""
        return self._kept("rounding", rounding.errors(self.seed))

    def complaint(self, flags: str, edge: str) -> str:
        """What the validator says of the schedule without the edge."""
        schedule = build(Techniques.parse(flags))
        return drift.complaint(schedule.without(drift.edge(schedule, edge)))

    def drift(self) -> Figure:
        """Trainings that run all the same, each without one edge: how far their losses go from `plain`."""
        frame = self._drifted()
        orders = "one random order" if self.orders == 1 else f"{self.orders} random orders"
        title = _title(f"Without an edge: difference from the plain loop, in {orders}", "measured", drift.TITLE)
        return self._drawn("drift", drift.picture(frame, title))

    def drift_table(self) -> pd.DataFrame:
        """When each begins, and how far it goes."""
        return self._kept("drift_by_edge", drift.digest(self._drifted()))

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        self.run.summary(**self._figures)
        self.run.finish("ok")
        return str(self.run.path)

    def _drifted(self) -> pd.DataFrame:
        if self._drift is None:
            self._drift = drift.drift(self.steps, range(self.orders), self.seed)
            self.run.table("drift", self._drift)
            every = self._drift.groupby("missing")["drift"].max()
            self._figures["drift_with_every_edge"] = float(every["nothing"])
            self._figures["drift_without_an_edge"] = float(every.drop("nothing").min())
        return self._drift

    def _broken(self, flags: str, edge: str, late: str) -> pd.DataFrame:
        schedule = build(Techniques.parse(flags))
        broken = schedule.without(drift.edge(schedule, edge))
        return driving.drive(flags, broken, driving.PutOff(Stage(late)))

    def _film(self, frame: pd.DataFrame, heading: str, name: str) -> Figure:
        return self._drawn(f"film {_slug(name)}", film(frame, _title(heading, "updates in each record")))

    def _drawn(self, name: str, figure: Figure) -> Figure:
        self.run.figure(name, figure)
        return figure

    def _kept(self, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        self.run.table(name, frame)
        return Shown(frame)


def mechanisms(
    *,
    dataset: str = "toy",
    data_root: str = "datasets",
    scale: str = "quick",
    device: str = "auto",
    backend: str = "gloo",
    world_size: int = 1,
    seed: int = 0,
    results_dir: str = "results",
) -> Mechanisms:
    """Opens a run. It needs no data and no accelerator: what is not looked at is only written down.

    Raises:
        UserError: an unknown scale, another data set than the toy, or several ranks.
    """
    if scale not in SCALES:
        raise UserError(f"mechanisms: scale={scale}: it must be one of {', '.join(SCALES)}")
    if dataset != "toy":
        raise UserError(f"mechanisms: dataset={dataset}: it explains on three batches of its own; leave dataset=toy")
    if world_size != 1:
        raise UserError(f"mechanisms: world_size={world_size}: it explains on one rank; give world_size=1")
    params = {"dataset": dataset, "data_root": data_root, "scale": scale, "device": device, "backend": backend}
    params |= {"world_size": world_size, "seed": seed}
    run = results.start("mechanisms", params, results_dir=results_dir, seed=seed)
    run.dataset(toy.info())
    steps, orders = SCALES[scale]
    return Mechanisms(run, steps, orders, seed)


def _ladder() -> dict[str, Schedule]:
    return {name: build(Techniques.parse(flags)) for name, flags in LADDER.items()}


def _title(heading: str, how: str, data: str = toy.TITLE) -> str:
    return plotting.titled(heading, {"dataset": data, "how": how})


def _slug(text: str) -> str:
    """As the name of a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "plain"
