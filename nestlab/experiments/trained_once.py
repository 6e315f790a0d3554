"""A study whose ranks are started once and do everything; its parts show what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from nestlab.experiments.answering import published
from nestlab.experiments.parts import PartsStudy
from nestlab.experiments.ranks import on_ranks
from nestlab.experiments.tables import Said, Shown


@dataclass(eq=False)
class TrainedOnce(PartsStudy):
    """The parts done so far.

    Attributes:
        work: what each rank does with the settings; what it returns has `rows` and `seconds` by part, and where
            `measure` is as it is here, `trainings`: how many there were.
        elsewhere: claims whose figures other protocols gave.
        found: what rank 0 returned; None: the ranks have not been started.
    """

    work: ClassVar[Callable[..., Any]]
    elsewhere: ClassVar[tuple[str, ...]] = ()

    found: Any = None

    def measure(self) -> Said:
        """All trainings, on ranks that are started once."""
        self.keep()
        return Said(f"{self.found.trainings} trainings {self.spent()}")

    def keep(self) -> None:
        """The table of all that the ranks measured, whatever is shown of it."""
        for part in self.on_ranks().rows:
            self.frame(part)

    def spent(self) -> str:
        """On how many ranks, and how long it took."""
        world_size, seconds = self.settings.world_size, sum(self.seconds.values())
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        return f"on {ranks} of this machine, one thread of computation each, in {seconds:.0f} s."

    def published(self) -> Shown:
        """Figures of the register, each with its protocol: they are of other data, and not compared."""
        note = "Published elsewhere, by other protocols: not to be compared figure by figure."
        return self.shown(published(self.elsewhere), note)

    def measured(self, part: str) -> pd.DataFrame:
        """What the ranks measured of a part."""
        return pd.DataFrame(self.on_ranks().rows[part])

    def on_ranks(self) -> Any:
        """What rank 0 found; they are started when it is first asked for."""
        if self.found is None:
            started = time.perf_counter()
            found = self.started()
            self.seconds |= found.seconds
            self.seconds["start"] = time.perf_counter() - started - sum(found.seconds.values())
            self.found = found
        return self.found

    def started(self, *more: Any) -> Any:
        """What rank 0 returns. `more`: what `work` is given besides the settings."""
        s = self.settings
        return on_ranks(type(self).work, s, *more, world_size=s.world_size, logs=self.run.path / "logs")
