"""The study as a notebook runs it: one part a question, each with a figure, its claims and a table, all in one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from nestlab import results
from nestlab.errors import UserError
from nestlab.experiments.ecorec import came_to, claims
from nestlab.experiments.ecorec.settings import settings
from nestlab.experiments.ecorec.streams import opened
from nestlab.experiments.parts import Part, PartsStudy
from nestlab.experiments.tables import Said
from nestlab.tracing import Trace, write_chrome_trace

_DRAWN = "ids drawn by a power law, or uniformly (SYNTHETIC)"
PARTS = {
    "redundancy": Part("Unique ids and unique prefixes in a batch", "each panel names its data"),
    "kernels": Part("Three schemes on one table", _DRAWN, "kernels_timed"),
    "memory": Part("What a look-up and its gradient hold at the peak", _DRAWN),
    "orders": Part("Unique rows sorted by number, or by frequency, before they are cut", "each row names its data"),
    "mixed": Part("Ever more tables as tensor trains", _DRAWN),
    "placed": Part("Tables placed on ranks", _DRAWN),
    "checks": Part(),
    "end_to_end": Part("A whole DLRM step", "each column names its data"),
    "ladder": Part("The embedding layer's pipeline, rung by rung", _DRAWN),
    "epochs": Part("Held-out quality over epochs"),
    "largest": Part("The largest table in equal memory", "no data: sizes"),
}
TIMELINES = {"before": "in order", "after": "+ slope"}


@dataclass(eq=False)
class Study(PartsStudy):
    """The parts done so far. `run` is open until `finish()`.

    Attributes:
        traces: by rung of the ladder.
    """

    name = "ecorec"
    package = "nestlab.experiments.ecorec"
    parts = PARTS
    answering = claims.ANSWERING
    told_at_smoke = ("redundancy", "orders", "largest", "checks")

    traces: dict[str, Trace] = field(default_factory=dict)

    def about(self) -> Said:
        """What is trained on, and what may be concluded."""
        text = f"{self.title}; {self.settings.threads} thread(s) where one process is timed, scale `{self.scale}`."
        return self.warned(text)

    def measured(self, part: str) -> pd.DataFrame:
        """The ladder starts ranks; two of its traces are kept."""
        if part != "ladder":
            return super().measured(part)
        found = self.module("ladder").measure(self.settings, self.run.path / "logs")
        self.traces = dict(found.traces)
        for which, case in TIMELINES.items():
            write_chrome_trace(self.traces[case], self.run.path / f"trace_{which}.json.gz")
        return found.frame

    def timeline(self, which: str) -> Figure:
        """A step of the ladder, `before` or `after`."""
        if which not in TIMELINES:
            raise UserError(f"ecorec: no timeline '{which}'; there are {', '.join(TIMELINES)}")
        self.frame("ladder")
        case = TIMELINES[which]
        figure = self.module("ladder").timeline(self.traces[case], case)
        self.run.figure(f"timeline_{which}", figure)
        return figure

    def came_to(self) -> Said:
        """What the multiplications that EcoRec saves came to in time."""
        return came_to.saved_came_to(self.frame("kernels"))


def ecorec(
    *,
    dataset: str = "criteo",
    data_root: str = "datasets",
    scale: str = "quick",
    device_name: str = "auto",
    backend: str = "gloo",
    world_size: int = 2,
    seed: int = 0,
    results_dir: str = "results",
) -> Study:
    """Opens a run; each part is done when it is first asked for.

    Raises:
        UserError: an unknown scale or data set, real data asked for by name but absent, or another device than the CPU,
            whose kernels are compared here.
    """
    if device_name not in ("auto", "cpu") or backend != "gloo":
        raise UserError(
            f"ecorec: device={device_name}, backend={backend}: kernels of the CPU are compared here; give device=cpu "
            "and backend=gloo"
        )
    told = {"dataset": dataset, "data_root": str(data_root), "seed": seed, "world_size": world_size}
    chosen = settings(scale, **told)
    info = opened(chosen.dataset, chosen).info
    run = results.start("ecorec", {**asdict(chosen), "scale": scale}, results_dir=results_dir, seed=seed)
    run.dataset(info)
    return Study(chosen, info.title, run, scale)
