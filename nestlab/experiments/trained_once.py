"""A study whose ranks are started once and train everything; its parts show what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd

from nestlab.experiments.nestpipe.ranks import on_ranks
from nestlab.experiments.nestpipe.tables import Said
from nestlab.experiments.parts import PartsStudy


@dataclass(eq=False)
class TrainedOnce(PartsStudy):
    """The parts done so far.

    Attributes:
        work: what each rank does with the settings; what it returns has `rows` by part, and `seconds`.
        rows: by part, what the ranks measured; empty: they have not been started.
    """

    work: ClassVar[Callable[[Any], Any]]

    rows: dict[str, list[dict]] = field(default_factory=dict)

    def trainings(self) -> int:
        """How many there were."""
        raise NotImplementedError

    def measure(self) -> Said:
        """All trainings, on ranks that are started once."""
        if not self.rows:
            self._on_ranks()
        count, world_size = self.trainings(), self.settings.world_size
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        return Said(
            f"{count} trainings on {ranks} of this machine, one thread of computation each, in "
            f"{sum(self.seconds.values()):.0f} s."
        )

    def measured(self, part: str) -> pd.DataFrame:
        """What the ranks measured of a part."""
        if not self.rows:
            self._on_ranks()
        return pd.DataFrame(self.rows[part])

    def _on_ranks(self) -> None:
        started, s = time.perf_counter(), self.settings
        found = on_ranks(type(self).work, s, world_size=s.world_size, logs=self.run.path / "logs")
        self.seconds |= found.seconds
        self.seconds["start"] = time.perf_counter() - started - sum(found.seconds.values())
        self.rows = found.rows
