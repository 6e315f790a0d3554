"""Who carries out a schedule's actions, and in which order.

`Inline` runs them in list order: the reference. `Shuffled` runs them in a random order that obeys the edges, the same
for the same seed: an edge that is missing then changes the result almost at once, where threads would do so by luck.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from nestlab.pipeline.schedule import Action, Key, Schedule

Perform = Callable[[Action], None]


class EndOfData(Exception):
    """Raised by LOAD when the loader has no batch `batch`."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        super().__init__(f"no batch {batch}")


@dataclass(frozen=True)
class Inline:
    """One thread, list order."""

    def window(self) -> int:
        return 1

    def choose(self, waiting: list[Action], is_ready: Callable[[Key], bool]) -> int | None:
        return 0  # the validator has shown that list order obeys every edge


class Shuffled:
    """One thread, a random topological order over `batches` steps at a time; every rank draws the same one."""

    def __init__(self, seed: int, batches: int = 4) -> None:
        self._random = random.Random(seed)
        self._batches = batches

    def window(self) -> int:
        return self._batches

    def choose(self, waiting: list[Action], is_ready: Callable[[Key], bool]) -> int | None:
        ready = [i for i, action in enumerate(waiting) if is_ready(action.key)]
        return self._random.choice(ready) if ready else None


class Progress:
    """How far a schedule has come: what is done, what waits, and where the data end.

    The only state that an execution has besides the batches in flight. An *epoch* begins with `first_batch`, with
    nothing in flight, and ends when LOAD finds no more data and all loaded batches are through.
    """

    def __init__(self, schedule: Schedule, executor: Inline | Shuffled) -> None:
        self._schedule = schedule
        self._executor = executor
        self._reach = min((edge.delta for edge in schedule.edges), default=0)  # how many batches back an edge can ask
        self._begin(0)

    def _begin(self, first_batch: int) -> None:
        self.first_batch = first_batch
        self.batch = first_batch  # the next one to be completed
        self._end: int | None = None
        self._planned_step = first_batch - self._schedule.most_ahead
        self._waiting: list[Action] = []
        self._done: set[Key] = set()  # asked for membership only, never iterated

    def advance(self, perform: Perform) -> int | None:
        """Runs actions until every one of the next batch is done; its number, or None at the end of the data."""
        self._plan(self.batch + self._executor.window())
        while any(action.key.batch == self.batch for action in self._waiting):
            self._run_one(perform)
        if self._end is not None and self.batch >= self._end:
            self._begin(self._end)
            return None
        self._forget(self.batch - 1)
        self.batch += 1
        return self.batch - 1

    def stop_loading(self) -> None:
        """No further LOAD is begun: what is in flight is all there is (a drain)."""
        loaded = [key.batch for key in self._done if key.stage is self._schedule.entries[0].stage]
        self._cut(max(loaded, default=self.batch - 1) + 1)

    def _plan(self, steps: int) -> None:
        while self._planned_step < steps:
            actions = self._schedule.step(self._planned_step, self.first_batch)
            self._waiting += [a for a in actions if self._end is None or a.key.batch < self._end]
            self._planned_step += 1

    def _run_one(self, perform: Perform) -> None:
        chosen = self._executor.choose(self._waiting, self._is_ready)
        if chosen is None:
            raise RuntimeError(f"schedule '{self._schedule.name}' cannot go on: {self._waiting[0]} waits for ever")
        action = self._waiting.pop(chosen)
        try:
            perform(action)
        except EndOfData as end:
            self._cut(end.batch)
        else:
            self._done.add(action.key)

    def _is_ready(self, key: Key) -> bool:
        return all(source in self._done for source in self._schedule.predecessors(key, self.first_batch))

    def _cut(self, end: int) -> None:
        self._end = end if self._end is None else min(end, self._end)
        self._waiting = [action for action in self._waiting if action.key.batch < self._end]

    def _forget(self, batch: int) -> None:
        """Drops what no edge can ask for any more, so that a run of any length stays small."""
        self._done = {key for key in self._done if key.batch >= batch + self._reach}
