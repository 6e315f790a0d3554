"""Events and the recorder: what an executor calls around every action.

Stages and lanes are plain strings here: nothing of the trainer is imported, so that measured, emulated and simulated
schedules leave the same kind of trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nestlab.tracing.memory import COUNTER, InUse
from nestlab.tracing.trace import Edge, Event, Key, Sample, Trace

Name = tuple[str, int, int]  # (stage, batch, part): an action, whatever the rank
Predecessors = Callable[[str, int, int], Iterable[Name]]


class Anchor(NamedTuple):
    """One moment on two clocks, so that the traces of several processes can be laid on one time axis.

    `perf_ns` has no common zero between machines; `wall_ns` has, as well as their clocks agree.
    """

    wall_ns: int
    perf_ns: int

    @classmethod
    def now(cls) -> Anchor:
        """The tightest of three readings: the wall clock, read between two readings of the other."""
        return min((_reading() for _ in range(3)), key=lambda reading: reading[0])[1]


def _reading() -> tuple[int, Anchor]:
    before = time.perf_counter_ns()
    wall = time.time_ns()
    after = time.perf_counter_ns()
    return after - before, Anchor(wall, (before + after) // 2)


class Recorder:
    """Keeps the events of a bounded window of batches; an event outside it costs one comparison.

    Any thread may record: a lane is a thread, and the only shared step is one `list.append`, which is atomic. Events
    are kept as bare tuples and become `Event`s when the trace is asked for, off the critical path.

    Args:
        first_batch: the first batch whose events are kept.
        batches: how many batches are kept; None keeps all (memory then grows with the run), 0 keeps nothing.
        rank: whose events these are.
        anchor: one moment on the wall clock and on `time.perf_counter_ns`; taken now by default.
    """

    __slots__ = ("_append", "_raw", "_stop", "anchor", "first_batch", "rank")

    def __init__(
        self, first_batch: int = 0, batches: int | None = 64, rank: int = 0, anchor: Anchor | None = None
    ) -> None:
        if batches is not None and batches < 0:
            raise ValueError(f"a recorder keeps 0 batches or more, not {batches}")
        self.first_batch = first_batch
        self._stop = float("inf") if batches is None else first_batch + batches
        self._raw: list[tuple[str, str, int, int, int, int, int, InUse | None]] = []
        self._append = self._raw.append  # looked up once, not once an event
        self.rank = rank
        self.anchor = anchor or Anchor.now()

    def __len__(self) -> int:
        return len(self._raw)

    def wants(self, batch: int) -> bool:
        """Whether events of this batch are kept: a caller may skip reading the clock where they are not."""
        return self.first_batch <= batch < self._stop

    def record(
        self,
        lane: str,
        stage: str,
        batch: int,
        part: int,
        start_ns: int,
        end_ns: int,
        nbytes: int = 0,
        in_use: InUse | None = None,
    ) -> None:
        """Keeps one event, if its batch lies in the window. Times are of `time.perf_counter_ns`.

        Fields and not an `Event`: to make one would cost as much as all the rest. `in_use`: bytes held at its end.
        """
        if self.first_batch <= batch < self._stop:
            self._append((lane, stage, batch, part, start_ns, end_ns, nbytes, in_use))

    def clear(self) -> None:
        """Forgets what was recorded; the window stays."""
        self._raw.clear()

    def forget(self, batch: int) -> None:
        """Forgets events from `batch` on: loaded beyond the end of the data, they come again. No lane runs."""
        self._raw[:] = [event for event in self._raw if event[2] < batch]

    def trace(self, predecessors: Predecessors, lanes: Sequence[str], meta: Mapping[str, Any]) -> Trace:
        """The trace so far: events by start, and the edges between recorded events.

        Args:
            predecessors: what had to end before an action could begin. Actions outside the window are left out.
            lanes: all lanes, in the order in which they are to be drawn; lanes that only events name follow.
            meta: JSON values; by custom `how` ("measured", "emulated link", "simulated cluster"), `dataset` (its
                title) and `schedule` (its name).
        """
        events = tuple(sorted(self._events(), key=lambda event: (event.start_ns, event.end_ns)))
        known = {event.key for event in events}
        edges = tuple(edge for event in events for edge in self._edges_into(event, predecessors, known))
        all_lanes = tuple(dict.fromkeys([str(lane) for lane in lanes] + [event.lane for event in events]))
        anchors = {str(self.rank): self.anchor._asdict()}
        return Trace(events, edges, all_lanes, {**meta, "anchors": anchors}, tuple(self._counters()))

    def _events(self) -> Iterable[Event]:
        for lane, stage, *rest, _ in list(self._raw):  # a copy: other lanes may still be recording
            yield Event(self.rank, str(lane), str(stage), *rest)  # str: an enumeration's member becomes a plain string

    def _counters(self) -> Iterable[Sample]:
        """The readings in order of time, each that differs from the one before."""
        last = None
        readings = [(end, in_use) for *_, end, _, in_use in list(self._raw) if in_use is not None]
        for time_ns, in_use in sorted(readings):
            if in_use != last:
                yield Sample(self.rank, COUNTER, time_ns, in_use.by_kind)
            last = in_use

    def _edges_into(self, event: Event, predecessors: Predecessors, known: set[Key]) -> Iterable[Edge]:
        for stage, batch, part in predecessors(event.stage, event.batch, event.part):
            source = (self.rank, str(stage), batch, part)
            if source in known:
                yield source, event.key
