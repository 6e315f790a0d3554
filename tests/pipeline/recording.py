"""Schedules carried out without any training: what ran, in which order, and which edges it broke."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from nestlab.pipeline import Action, Key, Schedule, Shape, Stage, build
from nestlab.pipeline.derivation import topological
from nestlab.pipeline.executors import Executor, Progress
from nestlab.pipeline.ledger import EndOfData
from nestlab.pipeline.ordering import Reach

TIERS = ("direct", "dual_buffer", "slot_cache")


@cache
def built(shape: Shape) -> Schedule:
    return build(shape)


@cache
def reach(schedule: Schedule, batches: int = 8) -> Reach:
    """What the schedule's edges order in a window."""
    pairs = schedule.pairs(batches)
    return Reach(topological(schedule, pairs, batches), pairs)


def shape_id(shape: Shape) -> str:
    options = [name for name in ("evicts", "foresees", "split", "clips", "in_order") if getattr(shape, name)]
    numbers = [
        f"{letter}{value}"
        for letter, value, usual in (
            ("d", shape.depth, 1),
            ("n", shape.micro_batches, 1),
            ("k", shape.staleness, 0),
            ("sync", shape.sync_every, 0),
        )
        if value != usual
    ]
    return "-".join([shape.tier, *numbers, *options])


@dataclass
class Recorded:
    """A perform function that keeps what began and ended, over `batches` batches; LOAD, or ROUTE, ends the data.

    `during` is called within an action, with no lock held: tests let two of them meet there.
    """

    batches: int
    ends_in: Stage = Stage.LOAD
    during: Callable[[Key], None] = lambda key: None
    began: list[Key] = field(default_factory=list)
    ended: list[Key] = field(default_factory=list)
    at_begin: dict[Key, frozenset[Key]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, action: Action) -> None:
        key = action.key
        with self._lock:
            self.began.append(key)
            self.at_begin[key] = frozenset(self.ended)
        self.during(key)
        if key.stage is self.ends_in and key.batch >= self.batches:
            raise EndOfData(key.batch)
        with self._lock:
            self.ended.append(key)

    def updates_at(self, key: Key) -> int:
        """Updates that had ended when `key` began."""
        return sum(done.stage is Stage.UPDATE for done in self.at_begin[key])

    def in_flight_at(self, key: Key) -> list[Key]:
        """What had begun and not ended when `key` began."""
        before = self.began[: self.began.index(key)]
        return [each for each in before if each not in self.at_begin[key]]

    def of(self, *stages: Stage) -> list[Key]:
        return [key for key in self.ended if key.stage in stages]

    def broken(self, schedule: Schedule) -> list[str]:
        """Edges whose source had not ended when the target began, among the batches that are there."""
        return [
            f"{source} → {key}"
            for key, done in self.at_begin.items()
            for source in schedule.predecessors(key)
            if source.batch < self.batches and source not in done
        ]


def carry_out(schedule: Schedule, executor: Executor, recorded: Recorded, depth=None) -> list[int]:
    """All batches there are; their numbers in the order in which they were through."""
    progress = Progress(schedule, executor, depth)
    numbers = []
    try:
        while (number := progress.advance(recorded)) is not None:
            numbers.append(number)
    finally:
        progress.close()
    return numbers


def whole(schedule: Schedule, batches: int) -> set[Key]:
    """Every action of so many batches."""
    return {entry.action(t).key for entry in schedule.entries for t in range(batches) if entry.has(t)}
