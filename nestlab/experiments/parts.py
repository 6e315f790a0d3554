"""A study as a notebook runs it: one part a question, each with a figure, its claims and a table, all in one run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting, results
from nestlab.errors import UserError
from nestlab.experiments import claims as register
from nestlab.experiments.answering import Answering, combine
from nestlab.experiments.tables import Said, Shown, noted


class Part(NamedTuple):
    """One question of a study. Its module, below the study's package, has what of these makes sense: `run(settings)`,
    which measures; `plot(frame, title)`, `says(frame)`, `answers(frame)`, `key_figures(frame)`, and the digest.

    Attributes:
        heading: of its figure; empty: it has none.
        data: where the frame does not name them in a column `data`; empty: the study's data set.
        module: empty: it has the part's name.
        digest: name of the function that makes the table which is shown; where there is none, the frame is shown.
    """

    heading: str = ""
    data: str = ""
    module: str = ""
    digest: str = "digest"


@dataclass(eq=False)
class PartsStudy:
    """The parts done so far. `run` is open until `finish()`. A study says its parts and how one is `measured`.

    Attributes:
        name: of the experiment, in messages.
        package: of the modules of the parts.
        parts: by name.
        answering: the notebook's part of the register of claims.
        smoke_says: what a smoke run may not be read for.
        smoke_notes: the same beside a figure and above a table.
        told_at_smoke: parts whose text holds at smoke too: it is of bits or counts, not of times or metrics.
        settings: what every part is given.
        title: of the data set.
        scale: at smoke nothing is judged.
        frames: by part, what it measured.
        seconds: by part.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    parts: ClassVar[Mapping[str, Part]]
    answering: ClassVar[Answering]
    smoke_says: ClassVar[str] = (
        "This is a smoke run: it shows that everything runs, answers no claim, and its times and speed-ups mean "
        "nothing. For those take scale quick or paper."
    )
    smoke_notes: ClassVar[tuple[str, str]] = ("SMOKE: times mean nothing", "Smoke: times and speeds mean nothing.")
    told_at_smoke: ClassVar[tuple[str, ...]] = ()

    settings: Any
    title: str
    run: results.Run
    scale: str = "quick"
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def measured(self, part: str) -> pd.DataFrame:
        """Does a part; `frame` keeps what it gives."""
        return self.module(part).run(self.settings)

    @property
    def smoke(self) -> bool:
        return self.scale == "smoke"

    def figure(self, part: str) -> Figure:
        """Does a part, where it has not been done, and draws it."""
        frame = self.frame(part)
        about = {
            "dataset": self.parts[part].data or _only(frame, "data") or self.title,
            "how": self.shown_how(_how(frame)),
        }
        figure = self.module(part).plot(frame, plotting.titled(self.parts[part].heading, about, 120))
        self.run.figure(part, figure)
        return figure

    def frame(self, part: str) -> pd.DataFrame:
        """What a part measured, all of it; kept in the run as a table of that name.

        Raises:
            UserError: no part is called so.
        """
        if part not in self.parts:
            raise UserError(f"{self.name}: no part '{part}'; there are {', '.join(self.parts)}")
        if part not in self.frames:
            started = time.perf_counter()
            frame = self.measured(part)
            self.frames[part] = frame
            self.seconds.setdefault(part, time.perf_counter() - started)
            self.run.table(part, frame)
        return self.frames[part]

    def table(self, part: str) -> Shown:
        """What a reader is shown of a part."""
        frame, digest = self.frame(part), getattr(self.module(part), self.parts[part].digest, None)
        return self.shown_figures(frame if digest is None else digest(frame))

    def says(self, part: str) -> Said:
        """What a part's numbers come to, in words; at smoke nothing, but for `told_at_smoke`."""
        if self.smoke and part not in self.told_at_smoke:
            return Said("A smoke run: nothing is concluded.")
        return self.module(part).says(self.frame(part))

    def beside(self, *parts: str) -> Shown:
        """The claims that these parts answer: published, obtained, verdict."""
        return self._beside(combine(each for part in parts for each in self._answered(part)))

    def claims(self) -> Shown:
        """All claims that the parts answered; kept in the run, where `nestlab claims` finds them."""
        answers = self._answers()
        self.run.table("claims", register.table(answers))
        return self._beside(answers)

    def still_open(self) -> Shown:
        """The claims that this notebook is to answer and did not, with the reasons."""
        return self.shown(self.answering.still_open(self._answers()))

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        verdicts = self.answering.beside(self._answers(), not self.smoke)["verdict"].value_counts()
        figures: dict[str, Any] = {}
        for part, frame in self.frames.items():
            figures |= getattr(self.module(part), "key_figures", lambda frame: {})(frame)
        figures |= {f"claims_{name.replace(' ', '_')}": int(count) for name, count in verdicts.items()}
        self.run.summary(**figures)
        self.run.obtained(*dict.fromkeys(way for frame in self.frames.values() for way in _ways(frame)))
        self.run.table("seconds", pd.DataFrame(list(self.seconds.items()), columns=["part", "seconds"]))
        self.run.finish("ok")
        return str(self.run.path)

    @classmethod
    def module(cls, part: str) -> ModuleType:
        return importlib.import_module(f"{cls.package}.{cls.parts[part].module or part}")

    def warned(self, text: str) -> Said:
        """The text, at smoke with what may not be concluded."""
        return Said(f"{text} **{self.smoke_says}**" if self.smoke else text)

    def shown_how(self, how: str) -> str:
        """How numbers were obtained, with a warning at smoke."""
        return f"{how} · {self.smoke_notes[0]}" if self.smoke else how

    def shown_figures(self, frame: pd.DataFrame) -> Shown:
        """With a warning above it at smoke."""
        return self.shown(frame, self.smoke_notes[1] * self.smoke)

    def shown(self, frame: pd.DataFrame, note: str = "") -> Shown:
        """As the notebook shows a frame, with a line above it."""
        return noted(frame, note)

    def _beside(self, answers: list[register.Answer]) -> Shown:
        note = "Smoke: a run this small answers nothing." * self.smoke
        return self.shown(self.answering.beside(answers, not self.smoke), note)

    def _answered(self, part: str) -> list[dict]:
        answers = getattr(self.module(part), "answers", None)
        return [] if answers is None else answers(self.frame(part))

    def _answers(self) -> list[register.Answer]:
        return combine(each for part in self.frames for each in self._answered(part))


def _only(frame: pd.DataFrame, column: str) -> str | None:
    told = frame[column].unique() if column in frame.columns else ()
    return told[0] if len(told) == 1 else None


def _how(frame: pd.DataFrame) -> str:
    return ", ".join(_ways(frame)) or "measured"


def _ways(frame: pd.DataFrame) -> list[str]:
    """How the numbers of a frame were obtained, every way once."""
    column = next((name for name in ("how", "how_obtained") if name in frame.columns), None)
    told = [] if column is None else [part for how in frame[column].unique() for part in how.split(", ")]
    return list(dict.fromkeys(told))
