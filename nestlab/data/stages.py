"""How fast each stage of a preparation went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nestlab.data.prepare import Progress


@dataclass
class Stage:
    """One stage while it runs. `rows`: what this process has done of it."""

    name: str
    subject: str
    progress: Progress
    started: float = field(default_factory=time.perf_counter)
    rows: int = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def add(self, rows: int, of: str = "") -> None:
        """So many rows more are done; tells the progress. `of`: what of, in words."""
        self.rows += rows
        rate = self.rows / max(self.seconds, 1e-9)
        self.progress(f"{self.subject}: {self.name}{of and ' ' + of}, {self.rows:,} rows, {rate:,.0f} rows/s")

    def facts(self) -> dict[str, float]:
        seconds = self.seconds
        return {"rows": self.rows, "seconds": round(seconds, 3), "rows_s": round(self.rows / max(seconds, 1e-9))}


@dataclass
class Stages:
    """The stages of one preparation, in their order. What an earlier, killed process did is not in them."""

    subject: str
    progress: Progress
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[Stage]:
        stage = Stage(name, self.subject, self.progress)
        yield stage
        self.done[name] = stage.facts()
