"""A trace: what ran when, on which lane of which rank, and what had to wait for what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd  # imported where it is used: a trainer that only records need not wait for it

WHOLE = -1  # the part of an action that concerns its whole batch
COMPUTE = "compute"  # the lane whose idle time is what a pipeline tries to remove
NS_PER_MS = 1e6

Key = tuple[int, str, int, int]  # (rank, stage, batch, part)
Edge = tuple[Key, Key]


class Event(NamedTuple):
    """One action that ran: [start_ns, end_ns) of `time.perf_counter_ns`, `nbytes` moved. Part −1: the whole batch."""

    rank: int
    lane: str
    stage: str
    batch: int
    part: int
    start_ns: int
    end_ns: int
    nbytes: int = 0

    @property
    def key(self) -> Key:
        return self.rank, self.stage, self.batch, self.part

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Sample(NamedTuple):
    """What a counter read at one moment: `values` are (series, amount), in drawing order."""

    rank: int
    name: str
    time_ns: int
    values: tuple[tuple[str, int], ...]


class Step(NamedTuple):
    """From the end of the previous batch's last compute action to the end of this one's."""

    rank: int
    batch: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Trace:
    """Events of one or more ranks, the edges among them, all lanes in drawing order, and where it comes from.

    Attributes:
        events: each with its own key (rank, stage, batch, part).
        edges: (source, target): the source ended before the target could begin.
        lanes: every lane that an event names, and those that stayed empty.
        meta: JSON values only (it is brought into that form here, so that a trace equals its file's).
        counters: readings beside the events, such as bytes by kind (`nestlab.tracing.memory`).
    """

    events: tuple[Event, ...]
    edges: tuple[Edge, ...]
    lanes: tuple[str, ...]
    meta: dict[str, Any]
    counters: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", json.loads(json.dumps(self.meta, allow_nan=False)))
        counts = Counter(event.key for event in self.events)
        repeated = next((key for key, count in counts.items() if count > 1), None)
        if repeated is not None:
            raise ValueError(f"two events of one action in a trace: (rank, stage, batch, part) = {repeated}")
        lost = next((edge for edge in self.edges if edge[0] not in counts or edge[1] not in counts), None)
        if lost is not None:
            raise ValueError(f"an edge of a trace names an action without an event: {lost}")
        unknown = sorted({event.lane for event in self.events} - set(self.lanes))
        if unknown:
            raise ValueError(f"events on lanes that the trace does not list: {', '.join(unknown)}")

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({event.rank for event in self.events}))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({event.batch for event in self.events}))

    @cached_property
    def origin_ns(self) -> int:
        """The zero of every time in milliseconds: the earliest start of any rank."""
        return min((event.start_ns for event in self.events), default=0)

    def of_rank(self, rank: int) -> list[Event]:
        return [event for event in self.events if event.rank == rank]

    def span(self, rank: int) -> tuple[int, int]:
        """The first start and the last end of a rank's events, in ns."""
        events = self.of_rank(rank)
        return min(e.start_ns for e in events), max(e.end_ns for e in events)

    def only(self, *ranks: int) -> Trace:
        """The part that concerns these ranks."""
        counters = (sample for sample in self.counters if sample.rank in ranks)
        return self._keep((event for event in self.events if event.rank in ranks), counters)

    def between(self, start_ns: int, end_ns: int) -> Trace:
        """What ran in [start_ns, end_ns); an event that reaches beyond is cut there."""
        inside = [e for e in self.events if e.start_ns < end_ns and (e.end_ns > start_ns or e.start_ns >= start_ns)]
        cut = (e._replace(start_ns=max(e.start_ns, start_ns), end_ns=min(e.end_ns, end_ns)) for e in inside)
        return self._keep(cut, (sample for sample in self.counters if start_ns <= sample.time_ns < end_ns))

    def steady(self, compute_lane: str = COMPUTE) -> Trace:
        """Without the first step of every rank and what follows its last one.

        A recorder's window opens while earlier batches, which it does not keep, still compute, and closes while later
        ones are being prefetched. In between, every compute action is known, and idle time is idle time.
        """
        spans = [self.step_spans(rank, compute_lane) for rank in self.ranks]
        if not spans or any(len(steps) < 2 for steps in spans):
            return self
        cut = [self.only(s[0].rank).between(s[0].end_ns, s[-1].end_ns) for s in spans]
        return self._keep((e for part in cut for e in part.events), (c for part in cut for c in part.counters))

    def step_spans(self, rank: int, compute_lane: str = COMPUTE) -> list[Step]:
        """A rank's steps, end to end: each ends with its batch's last compute action; the first begins the span."""
        ends: dict[int, int] = {}
        for event in self.events:
            if event.rank == rank and event.lane == compute_lane:
                ends[event.batch] = max(event.end_ns, ends.get(event.batch, event.end_ns))
        steps, begin = [], self.span(rank)[0] if ends else 0
        for batch in sorted(ends):
            steps.append(Step(rank, batch, begin, max(begin, ends[batch])))
            begin = steps[-1].end_ns
        return steps

    def steps(self, compute_lane: str = COMPUTE) -> pd.DataFrame:
        """Columns rank, batch, start_ms, end_ms, duration_ms, as `step_spans`."""
        import pandas as pd

        spans = [step for rank in self.ranks for step in self.step_spans(rank, compute_lane)]
        frame = pd.DataFrame(spans, columns=Step._fields)
        return self._in_ms(frame)

    def frame(self) -> pd.DataFrame:
        """Columns rank, lane, stage, batch, part, start_ms, end_ms, duration_ms, nbytes; ms since the trace began."""
        import pandas as pd

        frame = self._in_ms(pd.DataFrame(self.events, columns=Event._fields))
        return frame[[*(name for name in frame.columns if name != "nbytes"), "nbytes"]]

    def _in_ms(self, frame: pd.DataFrame) -> pd.DataFrame:
        start, end = frame.pop("start_ns"), frame.pop("end_ns")
        frame["start_ms"] = (start - self.origin_ns) / NS_PER_MS
        frame["end_ms"] = (end - self.origin_ns) / NS_PER_MS
        frame["duration_ms"] = (end - start) / NS_PER_MS
        return frame

    def _keep(self, events: Iterable[Event], counters: Iterable[Sample]) -> Trace:
        kept = tuple(events)
        keys = {event.key for event in kept}
        edges = tuple(edge for edge in self.edges if edge[0] in keys and edge[1] in keys)
        return replace(self, events=kept, edges=edges, counters=tuple(counters))
