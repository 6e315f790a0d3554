"""The traces of several ranks as one, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nestlab.tracing.trace import Trace


def merge(traces: Sequence[Trace]) -> Trace:
    """One trace of the traces of several ranks, on the first one's time axis: a rank is a process, a lane a thread.

    Where every trace's meta has `clocks` (its clock against rank 0's, as `nestlab.tracing.gather.clock_offset` finds
    it), they say how far each is shifted. Else the wall clocks of the anchors do, which agree to some ms between
    hosts; and without anchors the clocks are taken to be one, as they are between processes of one machine on Linux.
    The other meta data are the first trace's.

    Raises:
        ValueError: no trace, or two of one rank.
    """
    if not traces:
        raise ValueError("no traces to merge")
    events, edges, counters = [], [], []
    for trace, shift in zip(traces, _shifts(traces), strict=True):
        events += [e._replace(start_ns=e.start_ns + shift, end_ns=e.end_ns + shift) for e in trace.events]
        edges += trace.edges
        counters += [sample._replace(time_ns=sample.time_ns + shift) for sample in trace.counters]
    lanes = tuple(dict.fromkeys(lane for trace in traces for lane in trace.lanes))
    return Trace(tuple(events), tuple(edges), lanes, _meta(traces), tuple(counters))


def _shifts(traces: Sequence[Trace]) -> list[int]:
    """ns to add to each trace's times."""
    for offset in (_to_rank_0, _to_wall):
        offsets = [offset(trace) for trace in traces]
        if None not in offsets:
            return [each - offsets[0] for each in offsets]
    return [0] * len(traces)


def _meta(traces: Sequence[Trace]) -> dict[str, Any]:
    """After the shift one anchor and one offset hold for all; each rank's clock error stays."""
    meta = dict(traces[0].meta)
    anchors = {rank: anchor for trace in traces for rank, anchor in trace.meta.get("anchors", {}).items()}
    meta["anchors"] = dict.fromkeys(anchors, next(iter(anchors.values()), None))
    if all("clocks" in trace.meta for trace in traces):
        zero = _to_rank_0(traces[0])
        clocks = {rank: clock for trace in traces for rank, clock in trace.meta["clocks"].items()}
        meta["clocks"] = {rank: {**clock, "offset_ns": zero} for rank, clock in clocks.items()}
    return meta


def _to_rank_0(trace: Trace) -> int | None:
    """What must be added to the trace's times to get those of rank 0's clock, in ns."""
    clock = next(iter(trace.meta.get("clocks", {}).values()), None)
    return clock["offset_ns"] if clock else None


def _to_wall(trace: Trace) -> int | None:
    """What must be added to the trace's times to get the wall clock's, in ns."""
    anchor = next(iter(trace.meta.get("anchors", {}).values()), None)
    return anchor["wall_ns"] - anchor["perf_ns"] if anchor else None
