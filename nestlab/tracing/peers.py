"""Waiting for peers: how much of a collective was spent until the last rank came, told from a merged trace.

A rank that begins a collective before its peers takes longer than the one that begins last, which waits for nobody:
the difference of the two durations is waiting, but no more than the time from its own begin to the last one's. So a
link on which transfers end a fixed time after each rank's own begin has no waiting, and a meeting at which all end
together has all of the difference. The waiting is taken to lie at the action's begin. What the action does by itself
before the collective (picking rows, deduplicating keys) is taken to last equally long on all ranks.

The error is that of the clocks' alignment (`nestlab.tracing.gather.clock_offset`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from nestlab.tracing.stages import COLLECTIVES, GROUP, SHARD
from nestlab.tracing.trace import Event, Key, Trace


def waiting_ns(trace: Trace) -> dict[Key, int]:
    """Key → ns that the action waited for a peer: every collective that more than one rank of the trace has."""
    shards = max(1, len(trace.ranks) // max(1, int(trace.meta.get("replicas", 1))))
    waited: dict[Key, int] = {}
    for together in _meetings(trace.events, shards):
        last = max(together, key=lambda event: (event.start_ns, -event.duration_ns))
        for event in together:
            longer = max(0, event.duration_ns - last.duration_ns)
            waited[event.key] = min(longer, last.start_ns - event.start_ns)
    return waited


def contradiction_ns(trace: Trace) -> int:
    """By how much at least the clocks of a merged trace disagree, in ns; 0 where nothing contradicts them.

    No rank leaves a dense reduce or the routing of keys before every rank has begun it.
    """
    worst = 0
    for together in _meetings((e for e in trace.events if e.stage in ("DENSE_REDUCE", "ROUTE")), len(trace.ranks)):
        worst = max(worst, max(e.start_ns for e in together) - min(e.end_ns for e in together))
    return worst


def _meetings(events: Iterable[Event], shards: int) -> list[list[Event]]:
    """The same collective on every rank that takes part in it."""
    found: dict[tuple, list[Event]] = defaultdict(list)
    for event in events:
        among = COLLECTIVES.get(event.stage)
        if among is not None:
            circle = {GROUP: event.rank // shards, SHARD: event.rank % shards}.get(among, 0)
            found[event.stage, event.batch, event.part, circle].append(event)
    return [together for together in found.values() if len(together) > 1]
