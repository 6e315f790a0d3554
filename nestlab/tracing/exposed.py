"""Exposed time: which stage kept the compute lane waiting, instant by instant.

The rule. Whenever the compute lane is idle, the *waiting action* is the compute action that runs next. From it we walk
back, each time along the predecessor that ends last among those unfinished at that instant, until we reach an action
that is running: its stage is charged with the instant. If the walk ends before it meets a running action (all
predecessors have ended, yet the action has not begun), the instant goes to a predecessor of the waiting action itself
that is still running, by the tie rule below; if there is none, it is queueing or launch and is charged to
`overhead`. After the last compute action, the instant goes to the running action that ends last, or to `overhead`.
Every idle instant is thus charged once, and the parts sum to the idle time, in integer nanoseconds.

*Predecessors* are the schedule's edges and the action just before on the same lane, since a lane runs in list order:
an exchange that is stuck behind another exchange waits for that one, and not for nothing.

*Two predecessors run at once* (DENSE_REDUCE on a lane of its own beside the last GRAD_EXCHANGE): the one that ends
last is charged for as long as it runs, the other not at all, because without it the waiting action would have begun
no earlier. Where ends are equal: the one that began first, then the lane's place in the trace, then the key. So a
dense reduce that outlasts the exchange by a moment takes the exchange's exposed time with it: a study of exchanges
against a law (exposed = total / N) takes `Breakdown.exposed_comm`, in which the exchange comes first.

*Why one chain is enough.* The predecessor that ends last overall is unfinished at every instant before its end, so
that it is the one to follow at each of them; the walk from a gap's end to its begin visits each action once.

The rule is design.md 4.5; the idea of walking back the critical path is that of HolisticTraceAnalysis, applied to a
schedule whose edges are known instead of guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nestlab.tracing.trace import COMPUTE, NS_PER_MS, Event, Key, Trace

if TYPE_CHECKING:
    import pandas as pd

OVERHEAD = "overhead"  # the stage of idle time that no running action explains


class Stretch(NamedTuple):
    """[start_ns, end_ns) of a rank's compute idle time, what is charged for it, and the action that waited."""

    rank: int
    start_ns: int
    end_ns: int
    cause: Event | None  # None: overhead
    waiting: Event | None  # None: after the last compute action

    @property
    def stage(self) -> str:
        return self.cause.stage if self.cause else OVERHEAD

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class _Critical:
    """For every event of a rank, its predecessors, and the one that ends last."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self._place = {lane: place for place, lane in enumerate(trace.lanes)}
        events = trace.of_rank(rank)
        by_key = {event.key: event for event in events}
        before: dict[Key, list[Event]] = defaultdict(list)
        for source, target in trace.edges:
            if source in by_key and target in by_key:
                before[target].append(by_key[source])
        for earlier, later in _lane_order(events):
            before[later.key].append(earlier)
        self._before = before
        self._last = {key: min(sources, key=self.precedence) for key, sources in before.items()}

    def precedence(self, event: Event) -> tuple:
        """The latest end first; then the tie rule."""
        return -event.end_ns, event.start_ns, self._place[event.lane], event.key

    def of(self, event: Event) -> Event | None:
        return self._last.get(event.key)

    def all_of(self, event: Event) -> list[Event]:
        """The predecessors, those that end last first."""
        return sorted(self._before.get(event.key, ()), key=self.precedence)


def _lane_order(events: Iterable[Event]) -> Iterator[tuple[Event, Event]]:
    """Neighbours on a lane, as (earlier, later)."""
    previous: dict[str, Event] = {}
    for event in sorted(events, key=_begin):
        if event.lane in previous:
            yield previous[event.lane], event
        previous[event.lane] = event


def _begin(event: Event) -> tuple[int, int]:
    return event.start_ns, event.end_ns


def exposed_stretches(trace: Trace, compute_lane: str = COMPUTE) -> list[Stretch]:
    """The compute lane's idle time of every rank, cut where what is charged changes; by rank, then by time."""
    return [stretch for rank in trace.ranks for stretch in _of_rank(trace, rank, compute_lane)]


def _of_rank(trace: Trace, rank: int, compute_lane: str) -> list[Stretch]:
    critical = _Critical(trace, rank)
    covered, end = trace.span(rank)
    stretches: list[Stretch] = []
    for waiting in sorted((e for e in trace.of_rank(rank) if e.lane == compute_lane), key=_begin):
        if waiting.start_ns > covered:
            stretches += _walk_back(waiting, covered, critical)
        covered = max(covered, waiting.end_ns)
    if end > covered:
        others = sorted(trace.of_rank(rank), key=critical.precedence)
        stretches += _cut(rank, (covered, end), others, None)
    stretches.sort(key=lambda stretch: stretch.start_ns)
    return stretches


def _walk_back(waiting: Event, idle_since: int, critical: _Critical) -> Iterator[Stretch]:
    """The gap before `waiting`, from its end to its begin."""
    for stretch in _cut(waiting.rank, (idle_since, waiting.start_ns), _chain(waiting, critical), waiting):
        if stretch.cause is None:
            gap = stretch.start_ns, stretch.end_ns
            yield from _cut(waiting.rank, gap, critical.all_of(waiting), waiting)
        else:
            yield stretch


def _chain(event: Event, critical: _Critical) -> Iterator[Event]:
    """The predecessors that end last, one after the other.

    Clocks of several devices may contradict the edges, and lane order then closes a circle: an action met again ends
    the chain.
    """
    met = {event.key}
    source = critical.of(event)
    while source is not None and source.key not in met:
        yield source
        met.add(source.key)
        source = critical.of(source)


def _cut(rank: int, gap: tuple[int, int], causes: Iterable[Event], waiting: Event | None) -> Iterator[Stretch]:
    """A gap's stretches, from its end to its begin; causes come in the order in which they explain it backwards."""
    begin, cursor = gap
    for cause in causes:
        if cause.start_ns >= cursor:
            continue  # begins after what is still to be explained
        end = max(begin, min(cause.end_ns, cursor))
        if end < cursor:
            yield Stretch(rank, end, cursor, None, waiting)
        cursor = max(begin, cause.start_ns)
        if cursor < end:
            yield Stretch(rank, cursor, end, cause, waiting)
        if cursor <= begin:
            return
    if cursor > begin:
        yield Stretch(rank, begin, cursor, None, waiting)


def exposed_ns(trace: Trace, compute_lane: str = COMPUTE) -> dict[tuple[int, str], int]:
    """(rank, stage) → idle time of the compute lane charged to it, in ns; stages in order of appearance.

    Every stage that ran on another lane is there, with 0 if it was hidden; `overhead` comes last.
    """
    stages = dict.fromkeys(event.stage for event in trace.events if event.lane != compute_lane)
    charged = {(rank, stage): 0 for rank in trace.ranks for stage in [*stages, OVERHEAD]}
    for stretch in exposed_stretches(trace, compute_lane):
        charged[stretch.rank, stretch.stage] += stretch.duration_ns
    return charged


def exposed_time(trace: Trace, compute_lane: str = COMPUTE) -> pd.DataFrame:
    """Columns rank, stage, exposed_ms, share_of_span (of the rank's own span)."""
    import pandas as pd

    spans = {rank: trace.span(rank) for rank in trace.ranks}
    rows = [
        (rank, stage, ns / NS_PER_MS, ns / max(1, spans[rank][1] - spans[rank][0]))
        for (rank, stage), ns in exposed_ns(trace, compute_lane).items()
    ]
    return pd.DataFrame(rows, columns=["rank", "stage", "exposed_ms", "share_of_span"])
