"""A thread a lane: `Lanes`, the executor that overlaps what the edges leave unordered."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from nestlab.errors import RankFailed
from nestlab.pipeline.executors import Perform
from nestlab.pipeline.ledger import EndOfData, Ledger
from nestlab.pipeline.schedule import Action, Lane

PATIENCE_S = 2.0  # for an action that is under way when the process ends


@dataclass(frozen=True)
class Lanes:
    """A thread a lane. A lane runs in list order and waits for the predecessors of its next action, asleep.

    One step is planned at a time. What runs ahead in it goes on while the caller has the output of the step before; the
    computation of a batch never begins before the caller asks for that batch, so that it may change a learning rate
    between two of them, as under `Inline`. The caller gets the output when the batch's update has ended; what is left
    of the batch (write-back, release) overlaps with the next.
    """

    def window(self) -> int:
        return 1

    def work(self, ledger: Ledger) -> Crew:
        return Crew(ledger)


@dataclass(eq=False)
class _Lane:
    """A lane's actions to do, the one under way, and what wakes its thread."""

    wake: threading.Condition
    queue: deque[Action] = field(default_factory=deque)
    running: Action | None = None


class Crew:
    """The threads and what they share, all of it under one lock. Implements `Work` (nestlab/pipeline/executors.py).

    Threads start with the first action and end with `close`. Between actions they hold no reference to the caller's
    objects: a pipeline that is dropped is collected, and its finalizer ends them. That may happen in any thread, with
    the lock held: hence a lock that can be taken twice.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.RLock()
        self._main = threading.Condition(self._lock)
        self._lanes: dict[Lane, _Lane] = {}
        self._threads: list[threading.Thread] = []
        self._perform: Perform | None = None  # only while there is something to do
        self._awaited: int | None = None  # the batch that the main thread waits for
        self._error: BaseException | None = None
        self._stopping = False

    def add(self, actions: Iterable[Action]) -> None:
        with self._lock:
            for action in filter(self._ledger.keeps, actions):
                if action.lane not in self._lanes:
                    self._lanes[action.lane] = _Lane(threading.Condition(self._lock))
                self._lanes[action.lane].queue.append(action)

    def run(self, batch: int, perform: Perform) -> bool:
        """As `Work.run`.

        Raises:
            BaseException: the first error of any lane, where it is not that of another rank; the threads have ended by
                then. An interrupt of the main thread leaves to `close` to wait for them.
        """
        try:
            with self._lock:
                self._perform, self._awaited = perform, batch
                self._start()
                self._wake()
                while not self._is_over():
                    self._main.wait()
                self._awaited = None
                if self._error is None:
                    return self._ledger.holds(batch)
        except BaseException:  # an interrupt of the main thread; a lane may be waiting for other ranks
            self.stop()
            raise
        self.close()
        error, self._error = self._error, None
        raise error

    def settle(self) -> None:
        with self._lock:
            while self._threads and not self._is_idle() and self._error is None:
                self._main.wait()

    def cut(self, end: int) -> None:
        """As `Work.cut`; what is under way of a later batch ends, and is dropped with it."""
        with self._lock:
            self._ledger.cut(end)
            for lane in self._lanes.values():
                lane.queue = deque(filter(self._ledger.keeps, lane.queue))

    def forget(self, batch: int) -> None:
        with self._lock:
            lanes = self._lanes.values()
            actions = [lane.running for lane in lanes if lane.running] + [a for lane in lanes for a in lane.queue]
            self._ledger.forget(min([batch, *(action.key.batch for action in actions)]))

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._perform = None
            for lane in self._lanes.values():
                lane.wake.notify()
        atexit.unregister(self._leave)

    def close(self) -> None:
        self._end()

    def _end(self, patience_s: float | None = None) -> None:
        """`patience_s`: how long to wait for each action that has begun; None: until it ends."""
        self.stop()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(patience_s)
        self._lanes.clear()

    def _leave(self) -> None:
        """The process ends: a thread cut off in native code would take it down, one in a loader may never come back."""
        self._end(PATIENCE_S)

    def _start(self) -> None:
        """Threads for the lanes that have none yet."""
        self._stopping = False
        if not self._threads:
            atexit.register(self._leave)
        for lane in list(self._lanes)[len(self._threads) :]:
            thread = threading.Thread(
                target=self._attend, args=(self._lanes[lane],), name=f"nestlab {lane}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _attend(self, lane: _Lane) -> None:
        """What a lane's thread does."""
        while (work := self._next(lane)) is not None:
            action, perform = work
            end = None
            try:
                perform(action)
            except EndOfData as found:
                end = found.batch
            except BaseException as error:
                self._fail(lane, error)
                return
            self._finish(lane, end)
            del work, perform

    def _next(self, lane: _Lane) -> tuple[Action, Perform] | None:
        """Waits for the lane's next action."""
        with self._lock:
            while not self._stopping:
                if lane.queue and self._ledger.is_ready(lane.queue[0].key):
                    lane.running = lane.queue.popleft()
                    return lane.running, self._perform
                lane.wake.wait()
        return None

    def _finish(self, lane: _Lane, end: int | None) -> None:
        with self._lock:
            if end is None:
                self._ledger.done.add(lane.running.key)
            else:
                self.cut(end)
            lane.running = None
            if self._is_idle():
                self._perform = None
            self._wake(lane)

    def _fail(self, lane: _Lane, error: BaseException) -> None:
        with self._lock:
            lane.running = None
            echo = isinstance(self._error, RankFailed) and not isinstance(error, RankFailed)  # of an own error
            if self._error is None or echo:
                self._error = error
            self._stopping = True
            for other in self._lanes.values():
                other.wake.notify()
            self._main.notify()

    def _wake(self, own: _Lane | None = None) -> None:
        """Wakes the lanes that can go on, and the main thread if what it waits for is there."""
        going = 0
        for lane in self._lanes.values():
            ready = lane.running is None and lane.queue and self._ledger.is_ready(lane.queue[0].key)
            going += bool(ready or lane.running)
            if ready and lane is not own:
                lane.wake.notify()
        waiting = next((lane.queue[0] for lane in self._lanes.values() if lane.queue), None)
        if not going and waiting is not None and not self._stopping:
            self._error = self._error or self._ledger.stuck(waiting)
        if self._is_over():
            self._main.notify()

    def _is_over(self) -> bool:
        if self._error is not None or self._is_idle():
            return True
        return (
            self._awaited is not None and self._ledger.holds(self._awaited) and self._ledger.is_updated(self._awaited)
        )

    def _is_idle(self) -> bool:
        return not any(lane.queue or lane.running for lane in self._lanes.values())
