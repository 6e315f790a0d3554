"""The study as a notebook runs it: the ranks measure once, each part shows some of it, and all is one run."""

from __future__ import annotations

import importlib
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from nestlab import data, plotting, results
from nestlab.errors import UserError
from nestlab.experiments.nestpipe import came_to, claims, exactness, small, theirs, timelines
from nestlab.experiments.nestpipe.settings import POSITIONWISE, Settings, settings
from nestlab.experiments.nestpipe.tables import Said, Table, noted
from nestlab.experiments.placing import place
from nestlab.tracing import Trace, write_chrome_trace

# Part → heading of its figure; those without have none.
PARTS = {
    "ablation": "Where a step goes, technique by technique",
    "exactness": "Largest difference of any weight to the plain loop, after the same batches",
    "micro_batches": "Smaller micro-batches, with and without clustering",
    "clustering": "How much of what comes again between micro-batches a rule removes",
    "robustness": "Other sizes of the model, the same links",
    "lengths": "Longer histories, the same links",
    "replicas": "",
    "restart": "",
    "curriculum": "",
    "keys": "",
}
_HERE = ("clustering",)  # measured in this process; the others on ranks
_SMOKE = (
    "This is a smoke run: it shows that everything runs, answers no claim, and its times, shares of time and speed-ups "
    "mean nothing. For those take scale quick or paper."
)
_PACKAGE = "nestlab.experiments.nestpipe"


@dataclass(eq=False)
class Study:
    """What was measured so far. `run` is open until `finish()`.

    Attributes:
        frames: by part, what it measured.
        traces: by case of the ablation, under the links.
        title: of the data set.
        scale: at smoke nothing is judged, and whatever shows a time says that it means nothing.
    """

    settings: Settings
    title: str
    run: results.Run
    scale: str = "quick"
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def smoke(self) -> bool:
        return self.scale == "smoke"

    def about(self) -> Said:
        """What is trained on, and what may be concluded."""
        text = f"{self.title}; {self.settings.world_size} rank(s), scale `{self.scale}`."
        return Said(f"{text} **{_SMOKE}**" if self.smoke else text)

    def measure(self) -> Said:
        """Everything that takes ranks, which are started twice: once to be killed, once for all the rest."""
        if "ablation" not in self.frames:
            self._on_ranks()
        spent = sum(self.seconds.values())
        ranks = "1 rank" if self.settings.world_size == 1 else f"{self.settings.world_size} ranks"
        told = theirs.missing(self.settings)
        note = f" torchrec's pipelines are missing from the tables: {told}." if told else ""
        text = f"Measured on {ranks} of this machine, one thread of computation each, in {spent:.0f} s.{note}"
        return Said("\n\n".join(filter(None, (text, came_to.links_came_to(self.frames["ablation"], self.settings)))))

    def figure(self, part: str) -> Figure:
        """Draws a part."""
        frame = self.frame(part)
        about = {"dataset": _only(frame, "data") or self.title, "how": self._how(_how(frame))}
        figure = _module(part).plot(frame, plotting.titled(PARTS[part], about, 120))
        self.run.figure(part, figure)
        return figure

    def timeline(self, which: str) -> Figure:
        """A step under the links, `before` or `after`."""
        self.measure()
        if which not in timelines.SHOWN:
            raise UserError(f"nestpipe: no timeline '{which}'; there are {', '.join(timelines.SHOWN)}")
        case, _ = timelines.SHOWN[which]
        trace = self.traces[case]
        meta = {**trace.meta, "how": self._how(trace.meta.get("how", "measured"))}
        figure = timelines.plot(replace(trace, meta=meta), which)
        self.run.figure(f"timeline_{which}", figure)
        return figure

    def frame(self, part: str) -> pd.DataFrame:
        """What a part measured, all of it; kept in the run as a table of that name."""
        if part not in PARTS:
            raise UserError(f"nestpipe: no part '{part}'; there are {', '.join(PARTS)}")
        if part not in self.frames:
            if part in _HERE:
                self._here(part)
            else:
                self._on_ranks()
        return self.frames[part]

    def table(self, part: str) -> pd.DataFrame:
        """What a reader is shown of a part: its digest where it has one."""
        digest = getattr(_module(part), "digest", None)
        frame = self.frame(part)
        return self._table(frame if digest is None else digest(frame))

    def says(self, part: str) -> Said:
        """What a part's numbers come to, in words."""
        return _module(part).says(self.frame(part))

    def small(self) -> pd.DataFrame:
        """The small figures of the article, from what other parts measured."""
        self.measure()
        found = small.table(self.frames)
        self.run.table("small", found)
        return self._table(found)

    def beside(self, *parts: str) -> pd.DataFrame:
        """The claims that these parts answer: published, obtained, verdict."""
        return self._beside(claims.combine(each for part in parts for each in self._answered(part)))

    def claims(self) -> pd.DataFrame:
        """All claims that the parts answered; kept in the run, where `nestlab claims` finds them."""
        answers = self._answers()
        self.run.table("claims", claims.register.table(answers))
        return self._beside(answers)

    def still_open(self) -> pd.DataFrame:
        """The claims that this notebook is to answer and did not, with the reasons."""
        return noted(claims.still_open(self._answers()), "")

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        verdicts = claims.beside(self._answers(), not self.smoke)["verdict"].value_counts()
        figures: dict[str, Any] = {f"claims_{name.replace(' ', '_')}": int(count) for name, count in verdicts.items()}
        for part in self.frames:
            figures |= getattr(_module(part), "key_figures", lambda frame: {})(self.frames[part])
        self.run.summary(**figures)
        self.run.table("seconds", pd.DataFrame(list(self.seconds.items()), columns=["part", "seconds"]))
        self.run.finish("ok")
        return str(self.run.path)

    def _how(self, how: str) -> str:
        return f"{how} · SMOKE: times mean nothing" if self.smoke else how

    def _table(self, frame: pd.DataFrame) -> Table:
        return noted(frame, "Smoke: times and speeds mean nothing." if self.smoke else "")

    def _beside(self, answers: list[claims.Answer]) -> pd.DataFrame:
        return noted(claims.beside(answers, not self.smoke), "Smoke: a run this small answers nothing." * self.smoke)

    def _here(self, part: str) -> None:
        started = time.perf_counter()
        self._keep(part, _module(part).measure(self.settings))
        self.seconds[part] = time.perf_counter() - started

    def _on_ranks(self) -> None:
        from nestlab.experiments.nestpipe import measuring, ranks, restart

        started, s = time.perf_counter(), self.settings
        with tempfile.TemporaryDirectory(prefix="killed-", dir=self.run.path) as name:
            restart.kill_in_the_middle(s, Path(name))
            self.seconds["killed"] = time.perf_counter() - started
            logs = self.run.path / "logs"
            found = ranks.on_ranks(measuring.measure, s, Path(name), world_size=s.world_size, logs=logs)
        on_ranks = time.perf_counter() - started - self.seconds["killed"]
        self.seconds |= {"start": on_ranks - sum(found.seconds.values()), **found.seconds}
        for part, rows in found.rows.items():
            self._keep(part, pd.DataFrame(rows))
        self._keep("exactness", exactness.joined(self.frames["ablation"], self.frames["exactness"]))
        self.traces = found.traces
        for which, (case, _) in timelines.SHOWN.items():
            write_chrome_trace(self.traces[case], self.run.path / f"trace_{which}.json.gz")

    def _keep(self, part: str, frame: pd.DataFrame) -> None:
        self.frames[part] = frame
        self.run.table(part, frame)

    def _answered(self, part: str) -> list[dict]:
        frame = self.frame(part)
        if part == "keys":
            return small.answers(self.frames)
        answers = getattr(_module(part), "answers", None)
        return [] if answers is None else answers(frame)

    def _answers(self) -> list[claims.Answer]:
        return claims.combine(each for part in self.frames for each in self._answered(part))


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
        UserError: an unknown scale, model, backend or data set, real data asked for by name but absent, or no device
            for each rank.
    """
    where = place("nestpipe", device_name, backend, world_size)
    chosen = settings(
        scale, dataset=dataset, model=model, data_root=str(data_root), seed=seed, device=where, world_size=world_size
    )
    info = data.open_dataset(chosen.dataset, chosen.data_root, rows=chosen.rows).info
    params = {**asdict(chosen), "scale": scale, "backend": backend}
    run = results.start("nestpipe", params, results_dir=results_dir, seed=seed)
    run.dataset(info)
    return Study(chosen, info.title, run, scale)


def _module(part: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGE}.{'small' if part == 'keys' else part}")  # keys are one of its figures


def _only(frame: pd.DataFrame, column: str) -> str | None:
    told = frame[column].unique() if column in frame.columns else ()
    return told[0] if len(told) == 1 else None


def _how(frame: pd.DataFrame) -> str:
    """How the numbers of a frame were obtained, every way once."""
    return ", ".join(dict.fromkeys(frame["how"])) if "how" in frame.columns else "measured"
