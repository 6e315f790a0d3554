"""Who carries out a schedule's actions, and in which order.

`Inline` runs them in list order: the reference. `Shuffled` runs them in a random order that obeys the edges, the same
for the same seed: an edge that is missing then changes the result almost at once, where threads would do so by luck.
`Lanes` (nestlab/pipeline/lanes.py) runs every lane in a thread of its own.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from nestlab.pipeline.depths import Depth, at_depth
from nestlab.pipeline.ledger import EndOfData, Ledger
from nestlab.pipeline.schedule import Action, Schedule, Stage

Perform = Callable[[Action], object]


class Work(Protocol):
    """The actions that are planned and not done yet, and how they get done. All methods are the main thread's."""

    def add(self, actions: Iterable[Action]) -> None:
        """Plans actions, in list order; those beyond the end of the data are passed by."""
        ...

    def run(self, batch: int, perform: Perform) -> bool:
        """Goes on until `batch` is through: True. False: the data end before it, and everything planned is done."""
        ...

    def settle(self) -> None:
        """Returns when nothing runs that was planned before."""
        ...

    def cut(self, end: int) -> None:
        """There is to be no batch `end`, and none after it: what was planned of them is passed by."""
        ...

    def forget(self, batch: int) -> None:
        """`batch` is through: drops from the ledger what no action to come can ask for."""
        ...

    def stop(self) -> None:
        """Begins nothing more. Waits for nothing: a finalizer may call it, in any thread."""
        ...

    def close(self) -> None:
        """As `stop`; when it returns, nothing runs any more and no thread is left."""
        ...


class Executor(Protocol):
    """How a schedule is executed. `window` steps are planned at a time."""

    def window(self) -> int: ...

    def work(self, ledger: Ledger) -> Work: ...


@dataclass(frozen=True)
class Inline:
    """One thread, list order."""

    def window(self) -> int:
        return 1

    def work(self, ledger: Ledger) -> Work:
        # The validator has shown that list order obeys every edge.
        return Serial(ledger, lambda waiting: 0)


class Shuffled:
    """One thread, a random topological order over `batches` steps at a time; every rank draws the same one."""

    def __init__(self, seed: int, batches: int = 4) -> None:
        self._random = random.Random(seed)
        self._seed, self._batches = seed, batches

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self._seed}, batches={self._batches})"

    def window(self) -> int:
        return self._batches

    def work(self, ledger: Ledger) -> Work:
        def choose(waiting: list[Action]) -> int | None:
            ready = [i for i, action in enumerate(waiting) if ledger.is_ready(action.key)]
            return self.pick(ready, waiting) if ready else None

        return Serial(ledger, choose)

    def pick(self, ready: list[int], waiting: list[Action]) -> int:
        """One of the places `ready` among the waiting actions."""
        return self._random.choice(ready)


class Serial:
    """Actions one by one in the caller's thread; `choose` says which of those waiting comes next."""

    def __init__(self, ledger: Ledger, choose: Callable[[list[Action]], int | None]) -> None:
        self._ledger, self._choose = ledger, choose
        self._waiting: list[Action] = []

    def add(self, actions: Iterable[Action]) -> None:
        self._waiting += filter(self._ledger.keeps, actions)

    def run(self, batch: int, perform: Perform) -> bool:
        while any(action.key.batch == batch for action in self._waiting):
            self._run_one(perform)
        return self._ledger.holds(batch)

    def settle(self) -> None:
        pass

    def cut(self, end: int) -> None:
        self._ledger.cut(end)
        self._waiting = [action for action in self._waiting if self._ledger.keeps(action)]

    def forget(self, batch: int) -> None:
        self._ledger.forget(min([batch, *(action.key.batch for action in self._waiting)]))

    def stop(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self.stop()

    def _run_one(self, perform: Perform) -> None:
        chosen = self._choose(self._waiting)
        if chosen is None:
            raise self._ledger.stuck(self._waiting[0])
        action = self._waiting.pop(chosen)
        try:
            perform(action)
        except EndOfData as end:
            self.cut(end.batch)
        else:
            self._ledger.done.add(action.key)


class Progress:
    """How far a schedule has come: what is planned, and which batch comes next.

    The only state that an execution has besides the batches in flight. An *epoch* begins with `first_batch`, with
    nothing in flight, and ends when there are no more data and all batches before their end are through.

    `depth` says how many batches may be in flight at a step; None: as many as the schedule has room for. In step s each
    entry plans its batches, those not planned yet, up to s + min(ahead, depth(s) − 1). Where the depth rises, that is
    done as if it rose one at a time within the step, so that every action comes after those it waits for.

    What is planned depends on the steps alone, never on how fast a lane is: it is the same on every rank.
    """

    def __init__(self, schedule: Schedule, executor: Executor, depth: Depth | None = None) -> None:
        self._schedule = schedule
        self._window = executor.window()
        self._depth = depth
        self._least_depth = schedule.shape.least_depth if schedule.shape else 1
        self._by_depth: dict[int, Schedule] = {}
        self._ledger = Ledger(schedule)
        self._work = executor.work(self._ledger)
        self._begin(0)
        weakref.finalize(self, self._work.stop).atexit = False  # threads do not outlive the pipeline that they work for

    def _begin(self, first_batch: int) -> None:
        self.batch = first_batch  # the next one to be completed
        self._planned_step = first_batch - self._schedule.most_ahead
        self._planned = {(entry.stage, entry.part): first_batch for entry in self._schedule.entries}  # up to, without
        self._ledger.begin(first_batch)
        self._last_depth = self._depth_at(self._planned_step)

    def advance(self, perform: Perform) -> int | None:
        """Runs actions until the next batch is through; its number, or None at the end of the data.

        After an error nothing more is begun; `close` waits for what is under way.

        Raises:
            ValueError: `depth` asks for fewer batches in flight than the schedule's rows need.
        """
        self._plan(self.batch + self._window)
        if not self._work.run(self.batch, perform):
            self._work.close()
            self._begin(self.batch)
            return None
        self._work.forget(self.batch)
        self.batch += 1
        return self.batch - 1

    def settle(self) -> None:
        """Returns when what was begun in the background has ended."""
        self._work.settle()

    def stop_loading(self) -> None:
        """No further LOAD is planned: what is planned is carried out and is all there is (a drain).

        Where the drain comes does not depend on how far a lane has come: on every rank it is after the same batch.
        """
        self._work.cut(self._loads_planned())

    def has_planned(self) -> bool:
        """Whether a drain would train anything."""
        return self._loads_planned() > self.batch

    def close(self) -> None:
        """Nothing runs any more when this returns, and nothing is begun again."""
        self._work.close()

    def _loads_planned(self) -> int:
        """Up to which batch, without it."""
        return max((batch for (stage, _), batch in self._planned.items() if stage is Stage.LOAD), default=self.batch)

    def _plan(self, steps: int) -> None:
        while self._planned_step < steps:
            self._work.add(list(self._actions(self._planned_step)))
            self._planned_step += 1

    def _actions(self, step: int) -> Iterator[Action]:
        """The step's, in list order."""
        depth = self._depth_at(step)
        for each in range(min(self._last_depth, depth), depth + 1):
            for entry in self._at(each).entries:
                begin = self._planned[entry.stage, entry.part]
                end = max(begin, step + entry.ahead + 1)
                self._planned[entry.stage, entry.part] = end
                yield from (entry.action(batch) for batch in range(begin, end) if entry.has(batch))
        self._last_depth = depth

    def _depth_at(self, step: int) -> int:
        most = self._schedule.most_ahead + 1
        if self._depth is None:
            return most
        step = max(step, self._ledger.first_batch)  # the pipeline is filled for its first step
        depth = self._depth(step)
        if depth < self._least_depth:
            raise ValueError(f"step {step}: depth {depth}, and the schedule needs at least {self._least_depth}")
        return min(depth, most)

    def _at(self, depth: int) -> Schedule:
        if depth not in self._by_depth:
            self._by_depth[depth] = at_depth(self._schedule, depth)
        return self._by_depth[depth]
