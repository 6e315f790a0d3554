"""How fast each stage of a preparation went."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from nestlab.data.prepare import Progress


@dataclass
class Stage:
    """One stage while it runs. `rows`: what this process has done of it; `resumed`: an earlier one has begun it."""

    name: str
    subject: str
    progress: Progress
    started: float = field(default_factory=time.perf_counter)
    rows: int = 0
    resumed: bool = False

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
        facts = {"rows": self.rows, "seconds": round(seconds, 3), "rows_s": round(self.rows / max(seconds, 1e-9))}
        return {**facts, "resumed": True} if self.resumed else facts


@dataclass
class Stages:
    """The stages of one preparation, in their order. What an earlier, killed process did is not in their figures."""

    subject: str
    progress: Progress
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str, resumed: object = False) -> Iterator[Stage]:
        """`resumed`: something true where an earlier process has begun it, such as what the journal has of it."""
        stage = Stage(name, self.subject, self.progress, resumed=bool(resumed))
        yield stage
        self.done[name] = stage.facts()


def told(name: str, facts: Mapping[str, float]) -> str:
    """A line about a stage, from what a manifest says of it."""
    if facts.get("resumed") and not facts["rows"]:
        return f"{name}: done before"
    before = ", the others before" if facts.get("resumed") else ""
    return f"{name}: {facts['rows']:,} rows in {facts['seconds']} s, {facts['rows_s']:,} rows/s{before}"
