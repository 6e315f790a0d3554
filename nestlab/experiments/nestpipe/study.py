"""The study as a notebook runs it: the ranks measure once, each part shows some of it, and all is one run."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from nestlab import data, results
from nestlab.errors import UserError
from nestlab.experiments.histories import needs_histories
from nestlab.experiments.nestpipe import came_to, claims, exactness, measuring, restart, small, theirs, timelines
from nestlab.experiments.nestpipe.measuring import Measured
from nestlab.experiments.nestpipe.settings import POSITIONWISE, settings
from nestlab.experiments.parts import Part
from nestlab.experiments.placing import place
from nestlab.experiments.tables import Said, Shown
from nestlab.experiments.trained_once import TrainedOnce
from nestlab.tracing import write_chrome_trace

PARTS = {
    "ablation": Part("Where a step goes, technique by technique"),
    "exactness": Part("Largest difference of any weight to the plain loop, after the same batches"),
    "micro_batches": Part("Smaller micro-batches, with and without clustering"),
    "clustering": Part("How much of what comes again between micro-batches a rule removes"),
    "robustness": Part("Other sizes of the model, the same links"),
    "lengths": Part("Longer histories, the same links"),
    "replicas": Part(),
    "restart": Part(),
    "curriculum": Part(),
    "keys": Part(module="small"),  # one of its figures
}


@dataclass(eq=False)
class Study(TrainedOnce):
    """The parts done so far. `run` is open until `finish()`. Ranks are started twice: once to be killed, once for all
    the rest."""

    name = "nestpipe"
    package = "nestlab.experiments.nestpipe"
    parts = PARTS
    answering = claims.ANSWERING
    work = staticmethod(measuring.measure)
    smoke_says = (
        "This is a smoke run: it shows that everything runs, answers no claim, and its times, shares of time and "
        "speed-ups mean nothing. For those take scale quick or paper."
    )
    told_at_smoke = ("exactness", "replicas", "restart")

    def about(self) -> Said:
        """What is trained on, and what may be concluded."""
        s = self.settings
        samples = f"windows of at most {s.history} events" if s.sequential else "rows"
        return self.warned(f"{self.title}; model {s.model} on {samples}, {s.world_size} rank(s), scale `{self.scale}`.")

    def measure(self) -> Said:
        """Everything that takes ranks."""
        self.keep()
        told = theirs.missing(self.settings)
        note = f" torchrec's pipelines are missing from the tables: {told}." if told else ""
        came = came_to.links_came_to(self.frames["ablation"], self.settings)
        return Said("\n\n".join(filter(None, (f"Measured {self.spent()}{note}", came))))

    def measured(self, part: str) -> pd.DataFrame:
        """What the ranks measured of a part; clustering takes none."""
        if part == "clustering":
            return self.module(part).measure(self.settings)
        found = super().measured(part)
        return exactness.joined(self.frame("ablation"), found) if part == "exactness" else found

    def started(self) -> Measured:
        """What rank 0 returns, and the traces that are drawn, in the run's folder."""
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="killed-", dir=self.run.path) as name:
            restart.kill_in_the_middle(self.settings, Path(name))
            killed = time.perf_counter() - begun
            found = super().started(Path(name))
        found.seconds["killed"] = killed
        for which, (case, _) in timelines.SHOWN.items():
            write_chrome_trace(found.traces[case], self.run.path / f"trace_{which}.json.gz")
        return found

    def timeline(self, which: str) -> Figure:
        """A step under the links, `before` or `after`."""
        if which not in timelines.SHOWN:
            raise UserError(f"nestpipe: no timeline '{which}'; there are {', '.join(timelines.SHOWN)}")
        trace = self.on_ranks().traces[timelines.SHOWN[which][0]]
        meta = {**trace.meta, "how": self.shown_how(trace.meta.get("how", "measured"))}
        figure = timelines.plot(replace(trace, meta=meta), which)
        self.run.figure(f"timeline_{which}", figure)
        return figure

    def small(self) -> Shown:
        """The small figures of the article, from what other parts measured."""
        self.keep()
        found = small.table(self.frames)
        self.run.table("small", found)
        return self.shown_figures(found)


def nestpipe(
    *,
    dataset: str = "kuairand",
    model: str = POSITIONWISE,
    data_root: str = "datasets",
    scale: str = "quick",
    device_name: str = "auto",
    backend: str = "gloo",
    world_size: int = 2,
    seed: int = 0,
    results_dir: str = "results",
) -> Study:
    """Opens a run; what takes ranks is measured when it is first asked for.

    Raises:
        UserError: an unknown scale, model, backend or data set, data without histories for a model that reads them,
            real data asked for by name but absent, or no device for each rank.
    """
    where = place("nestpipe", device_name, backend, world_size)
    chosen = settings(
        scale, dataset=dataset, model=model, data_root=str(data_root), seed=seed, device=where, world_size=world_size
    )
    opened = data.open_dataset(chosen.dataset, chosen.data_root, rows=chosen.rows)
    if chosen.sequential:
        needs_histories("nestpipe", opened, f"model={chosen.model}")
    params = {**asdict(chosen), "scale": scale, "backend": backend}
    run = results.start("nestpipe", params, results_dir=results_dir, seed=seed)
    run.dataset(opened.info)
    return Study(chosen, opened.info.title, run, scale)
