"""The study as a notebook runs it: one part a question, each with a figure, its claims and a table, all in one run."""

from __future__ import annotations

import importlib
import time
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting, results
from nestlab.errors import UserError
from nestlab.experiments.ecorec import came_to, claims
from nestlab.experiments.ecorec.settings import Settings, settings
from nestlab.experiments.ecorec.streams import opened
from nestlab.experiments.nestpipe.tables import Said, Table, noted
from nestlab.tracing import Trace, write_chrome_trace

_DRAWN = "ids drawn by a power law, or uniformly (SYNTHETIC)"
# Part → its module, the heading of its figure, and its data where the frame does not name them.
PARTS = {
    "redundancy": ("redundancy", "Unique ids and unique prefixes in a batch", "each panel names its data"),
    "kernels": ("kernels_timed", "Three schemes on one table", _DRAWN),
    "memory": ("memory", "What a look-up and its gradient hold at the peak", _DRAWN),
    "orders": (
        "orders",
        "Unique rows sorted by number, or by frequency, before they are cut",
        "each row names its data",
    ),
    "mixed": ("mixed", "Ever more tables as tensor trains", _DRAWN),
    "placed": ("placed", "Tables placed on ranks", _DRAWN),
    "checks": ("checks", "", ""),
    "end_to_end": ("end_to_end", "A whole DLRM step", "each column names its data"),
    "ladder": ("ladder", "The embedding layer's pipeline, rung by rung", _DRAWN),
    "epochs": ("epochs", "Held-out quality over epochs", ""),
    "largest": ("largest", "The largest table in equal memory", "no data: sizes"),
}
TIMELINES = {"before": "in order", "after": "+ slope"}
_SMOKE = (
    "This is a smoke run: it shows that everything runs, answers no claim, and its times and speed-ups mean nothing. "
    "For those take scale quick or paper."
)
_PACKAGE = "nestlab.experiments.ecorec"


@dataclass(eq=False)
class Study:
    """The parts done so far. `run` is open until `finish()`.

    Attributes:
        frames: by part, what it measured.
        traces: by rung of the ladder.
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
        text = f"{self.title}; {self.settings.threads} thread(s) where one process is timed, scale `{self.scale}`."
        return Said(f"{text} **{_SMOKE}**" if self.smoke else text)

    def figure(self, part: str) -> Figure:
        """Does a part, where it has not been done, and draws it."""
        frame = self.frame(part)
        _, heading, source = PARTS[part]
        about = {"dataset": source or _only(frame, "data") or self.title, "how": self._how(_how(frame))}
        figure = _module(part).plot(frame, plotting.titled(heading, about, 120))
        self.run.figure(part, figure)
        return figure

    def timeline(self, which: str) -> Figure:
        """A step of the ladder, `before` or `after`."""
        if which not in TIMELINES:
            raise UserError(f"ecorec: no timeline '{which}'; there are {', '.join(TIMELINES)}")
        self.frame("ladder")
        case = TIMELINES[which]
        figure = _module("ladder").timeline(self.traces[case], case)
        self.run.figure(f"timeline_{which}", figure)
        return figure

    def frame(self, part: str) -> pd.DataFrame:
        """What a part measured, all of it; kept in the run as a table of that name."""
        if part not in PARTS:
            raise UserError(f"ecorec: no part '{part}'; there are {', '.join(PARTS)}")
        if part not in self.frames:
            started = time.perf_counter()
            frame = self._ladder() if part == "ladder" else _module(part).run(self.settings)
            self.frames[part] = frame
            self.seconds[part] = time.perf_counter() - started
            self.run.table(part, frame)
        return self.frames[part]

    def table(self, part: str) -> Table:
        """What a reader is shown of a part."""
        digest = _module(part).digest(self.frame(part))
        return noted(digest, "Smoke: times and speeds mean nothing." if self.smoke else "")

    def says(self, part: str) -> Said:
        """What a part's numbers come to, in words."""
        return _module(part).says(self.frame(part))

    def came_to(self) -> Said:
        """What the multiplications that EcoRec saves came to in time."""
        return came_to.saved_came_to(self.frame("kernels"))

    def beside(self, *parts: str) -> Table:
        """The claims that these parts answer: published, obtained, verdict."""
        return self._beside(claims.combine(each for part in parts for each in self._answered(part)))

    def claims(self) -> Table:
        """All claims that the parts answered; kept in the run, where `nestlab claims` finds them."""
        answers = self._answers()
        self.run.table("claims", claims.register.table(answers))
        return self._beside(answers)

    def still_open(self) -> Table:
        """The claims that this notebook is to answer and did not, with the reasons."""
        return noted(claims.still_open(self._answers()), "")

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        verdicts = claims.beside(self._answers(), not self.smoke)["verdict"].value_counts()
        figures: dict[str, Any] = {}
        for part, frame in self.frames.items():
            figures |= getattr(_module(part), "key_figures", lambda frame: {})(frame)
        figures |= {f"claims_{name.replace(' ', '_')}": int(count) for name, count in verdicts.items()}
        self.run.summary(**figures)
        self.run.table("seconds", pd.DataFrame(list(self.seconds.items()), columns=["part", "seconds"]))
        self.run.finish("ok")
        return str(self.run.path)

    def _ladder(self) -> pd.DataFrame:
        """The one part that starts ranks; two of its traces are kept."""
        found = _module("ladder").measure(self.settings, self.run.path / "logs")
        self.traces = dict(found.traces)
        for which, case in TIMELINES.items():
            write_chrome_trace(self.traces[case], self.run.path / f"trace_{which}.json.gz")
        return found.frame

    def _how(self, how: str) -> str:
        return f"{how} · SMOKE: times mean nothing" if self.smoke else how

    def _beside(self, answers: list[claims.Answer]) -> Table:
        return noted(claims.beside(answers, not self.smoke), "Smoke: a run this small answers nothing." * self.smoke)

    def _answered(self, part: str) -> list[dict]:
        answers = getattr(_module(part), "answers", None)
        return [] if answers is None else answers(self.frame(part))

    def _answers(self) -> list[claims.Answer]:
        return claims.combine(each for part in self.frames for each in self._answered(part))


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


def _module(part: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGE}.{PARTS[part][0]}")


def _only(frame: pd.DataFrame, column: str) -> str | None:
    told = frame[column].unique() if column in frame.columns else ()
    return told[0] if len(told) == 1 else None


def _how(frame: pd.DataFrame) -> str:
    """How the numbers of a frame were obtained, every way once."""
    return ", ".join(dict.fromkeys(part for how in frame["how"].unique() for part in how.split(", ")))
