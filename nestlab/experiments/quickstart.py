"""The first slice: train DLRM on Criteo, look at what it learnt, and see where a step's time went."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from nestlab import results
from nestlab.errors import NotAvailableYet, UserError
from nestlab.experiments.kept import train_and_keep
from nestlab.pipeline import Schedule
from nestlab.tracing import Trace, exposed_time, plot_exposed, plot_timeline, summary
from nestlab.training import History, TrainOptions, assemble
from nestlab.training.plots import plot_curve

# One dial: how much is trained. Rows bound real data too; a smaller data set is used whole.
SCALES = {
    "smoke": {"rows": 20_000, "batch_size": 128, "max_steps": 60, "evaluations": 2},
    "quick": {"rows": 200_000, "batch_size": 512, "evaluations": 5},
    "paper": {"batch_size": 2048, "epochs": 1, "evaluations": 10},
}


@dataclass(frozen=True)
class Quickstart:
    """A finished training with everything that the notebook shows. `run` is open until `finish()`."""

    options: TrainOptions
    title: str
    history: History
    metrics: pd.DataFrame
    trace: Trace
    steps: Schedule
    run: results.Run

    def schedule(self) -> str:
        """The step as text: actions by lane, then the edges that order them, each with its reason."""
        return str(self.steps)

    def curve(self) -> Figure:
        """Training loss a step, and the held-out metrics at each look."""
        return self._kept("learning_curve", plot_curve(self.history, self.trace.meta))

    def timeline(self, batches: int = 3) -> Figure:
        """Every action of a few steady steps, a row a lane."""
        return self._kept("timeline", plot_timeline(self.trace, batches=batches))

    def slow(self) -> pd.DataFrame:
        """For how long, a step, the compute lane waited for each stage (ms), the longest first."""
        exposed = exposed_time(self.trace)
        steps = summary(self.trace)["steps"]
        frame = exposed.assign(exposed_ms_per_step=exposed["exposed_ms"] / steps)
        frame = frame.sort_values("exposed_ms", ascending=False, ignore_index=True)
        self.run.table("exposed", frame)
        return frame

    def slow_figure(self) -> Figure:
        return self._kept("exposed", plot_exposed(self.trace))

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        self.run.finish("ok")
        return str(self.run.path)

    def _kept(self, name: str, figure: Figure) -> Figure:
        self.run.figure(name, figure)
        return figure


def quickstart(
    *,
    dataset: str = "",
    data_root: str = "datasets",
    scale: str = "quick",
    device: str = "auto",
    backend: str = "gloo",
    world_size: int = 1,
    seed: int = 0,
    results_dir: str = "results",
    **changes: Any,
) -> Quickstart:
    """Trains, evaluates and traces; leaves tables, figures and the trace in a run folder.

    Args:
        dataset: empty: the model's own.
        changes: fields of `TrainOptions` that differ from the scale's own and the model's; those that are None, 0 or
            empty do not.

    Raises:
        UserError: an unknown scale or data set, real data asked for by name but absent.
        NotAvailableYet: more than one rank.
    """
    if scale not in SCALES:
        raise UserError(f"quickstart: scale={scale}: it must be one of {', '.join(SCALES)}")
    if world_size != 1:
        raise NotAvailableYet(f"quickstart: world_size={world_size} is not available yet; use world_size=1")
    told = {"data_root": data_root, "device": device, "seed": seed}
    given = {name: value for name, value in ({"dataset": dataset} | changes).items() if value}
    options = TrainOptions.of(**{**SCALES[scale], **told, **given})
    shared = {"scale": scale, "backend": backend, "world_size": world_size}
    run = results.start("quickstart", {**options.parameters, **shared}, results_dir=results_dir, seed=seed)
    with ExitStack() as ends_run:
        ends_run.enter_context(run)
        trained = _train(options, run)
        ends_run.pop_all()  # all went well: the notebook's last cell ends the run
    return trained


def _train(options: TrainOptions, run: results.Run) -> Quickstart:
    recipe = assemble(options)
    history, metrics, trace = train_and_keep(recipe, run)
    return Quickstart(options, recipe.info.title, history, metrics, trace, recipe.pipeline.schedule, run)
