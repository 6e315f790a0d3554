"""What of an epoch is done, and where its data end: the part of an execution that every executor shares."""

from __future__ import annotations

from nestlab.pipeline.schedule import Action, Key, Schedule, Stage


class EndOfData(Exception):
    """There is no batch `batch`, and none after it.

    Raised by LOAD when the loader has none. Between ranks by ROUTE, of the same batch on each, when no rank has one:
    later batches may have been loaded by then, empty, and are dropped.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        super().__init__(f"no batch {batch}")


class Ledger:
    """Actions done since the epoch began. Not locked: an executor with threads holds its own lock around every call.

    Attributes:
        done: asked for membership only, never iterated for its order.
        first_batch: the epoch's.
        end: the first batch that there is no more; None while nobody knows.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._reach = schedule.reach
        self._updates = [entry.part for entry in schedule.entries if entry.stage is Stage.UPDATE]
        self.begin(0)

    def begin(self, first_batch: int) -> None:
        self.first_batch = first_batch
        self.done: set[Key] = set()
        self.end: int | None = None

    def is_ready(self, key: Key) -> bool:
        """A later batch that will never be, once that is known, asks for nothing (staleness)."""
        sources = self._schedule.predecessors(key, self.first_batch)
        return all(source in self.done or not self.holds(source.batch) for source in sources)

    def is_updated(self, batch: int) -> bool:
        """Its update has ended: there is an output."""
        return all(Key(Stage.UPDATE, batch, part) in self.done for part in self._updates)

    def holds(self, batch: int) -> bool:
        return self.end is None or batch < self.end

    def keeps(self, action: Action) -> bool:
        return self.holds(action.key.batch)

    def cut(self, end: int) -> None:
        """There is no batch `end` and none after it."""
        self.end = end if self.end is None else min(end, self.end)

    def forget(self, oldest: int) -> None:
        """Drops what no edge into batch `oldest` or a later one can ask for: a run of any length stays small."""
        self.done = {key for key in self.done if key.batch >= oldest + self._reach}

    def stuck(self, action: Action) -> RuntimeError:
        return RuntimeError(f"schedule '{self._schedule.name}' cannot go on: {action} waits for ever")
