"""Busy time by lane, and one dictionary of figures for a table row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from nestlab.tracing.exposed import exposed_ns
from nestlab.tracing.stages import GROUPS, group_of
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, Trace

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals that overlap or touch, merged; in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def busy(trace: Trace, rank: int, lane: str) -> list[Interval]:
    """When a lane of a rank was at work, in ns."""
    return union((e.start_ns, e.end_ns) for e in trace.events if e.rank == rank and e.lane == lane)


def lane_times(trace: Trace) -> pd.DataFrame:
    """Columns rank, lane, busy_ms, idle_ms, share (busy over the span of the rank); empty lanes included."""
    import pandas as pd

    rows = []
    for rank in trace.ranks:
        start, end = trace.span(rank)
        for lane in trace.lanes:
            work = length(busy(trace, rank, lane))
            rows.append((rank, lane, work / NS_PER_MS, (end - start - work) / NS_PER_MS, work / max(1, end - start)))
    return pd.DataFrame(rows, columns=["rank", "lane", "busy_ms", "idle_ms", "share"])


def summary(trace: Trace, compute_lane: str = COMPUTE) -> dict[str, float]:
    """The figures of one trace; with several ranks, sums over ranks divided by sums over ranks.

    For a recorder's window in the middle of a run, take `summary(trace.steady())`.

    * `span_ms`: first start to last end, of the rank with the longest span; `ranks`, `steps` (batches with compute).
    * `step_ms_median`, `step_ms_p90`: over the steps of all ranks (see `Trace.step_spans`).
    * `compute_busy_share`: compute lane's busy time over the span.
    * `bubble_ratio`: idle time between the compute lane's first and last action, over that time: without fill and
      drain, of which a short trace has too large a share.
    * `exposed_<group>_ms` (a rank's mean, over the whole span) and `exposed_<group>_share` (of the span), for the
      groups of `nestlab.tracing.stages.GROUPS`; they sum to the compute lane's idle time.
    * `straggler_ratio`: (max − mean) / max over ranks of the compute lane's busy time.
    * `overlap_efficiency`: of the time of all actions on other lanes, the share during which the compute lane of the
      same rank was busy. 0: everything in order; 1: all of it hidden. Two actions that run at once count twice.
    """
    if not trace.events:
        raise ValueError("a trace without events has no summary")
    spans = {rank: trace.span(rank) for rank in trace.ranks}
    total = max(1, length(spans.values()))
    work = {rank: busy(trace, rank, compute_lane) for rank in trace.ranks}
    work_ns = [length(intervals) for intervals in work.values()]
    inner = sum(intervals[-1][1] - intervals[0][0] for intervals in work.values() if intervals)
    return {
        "span_ms": max(end - start for start, end in spans.values()) / NS_PER_MS,
        "ranks": len(trace.ranks),
        **_step_figures(trace, compute_lane),
        "compute_busy_share": sum(work_ns) / total,
        "bubble_ratio": 1 - sum(work_ns) / inner if inner else 0.0,
        **_exposed_figures(trace, compute_lane, total),
        "straggler_ratio": (max(work_ns) - sum(work_ns) / len(work_ns)) / max(1, *work_ns),
        "overlap_efficiency": _overlap_efficiency(trace, compute_lane, work),
    }


def _step_figures(trace: Trace, compute_lane: str) -> dict[str, float]:
    steps = [step for rank in trace.ranks for step in trace.step_spans(rank, compute_lane)]
    durations = [(step.end_ns - step.start_ns) / NS_PER_MS for step in steps] or [0.0]
    return {
        "steps": len({step.batch for step in steps}),
        "step_ms_median": float(np.median(durations)),
        "step_ms_p90": float(np.percentile(durations, 90)),
    }


def _exposed_figures(trace: Trace, compute_lane: str, total_ns: int) -> dict[str, float]:
    charged = dict.fromkeys(GROUPS, 0)
    for (_, stage), ns in exposed_ns(trace, compute_lane).items():
        charged[group_of(stage)] += ns
    in_ms = {f"exposed_{group}_ms": ns / NS_PER_MS / len(trace.ranks) for group, ns in charged.items()}
    return in_ms | {f"exposed_{group}_share": ns / total_ns for group, ns in charged.items()}


def _overlap_efficiency(trace: Trace, compute_lane: str, work: dict[int, list[Interval]]) -> float:
    others: dict[int, list[Interval]] = defaultdict(list)
    for event in trace.events:
        if event.lane != compute_lane:
            others[event.rank].append((event.start_ns, event.end_ns))
    total = sum(length(intervals) for intervals in others.values())
    return sum(overlap(others[rank], work[rank]) for rank in others) / total if total else 0.0


def overlap(intervals: list[Interval], busy_intervals: list[Interval]) -> int:
    """The summed time that each interval shares with the (disjoint, ordered) busy ones."""
    if not busy_intervals:
        return 0
    edges = np.array(busy_intervals, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(edges[:, 1] - edges[:, 0])])

    def busy_until(times: np.ndarray) -> np.ndarray:
        begun = np.searchsorted(edges[:, 0], times, side="right")
        last = np.maximum(begun - 1, 0)
        rest = np.maximum(0, edges[last, 1] - times)  # what the interval that is open at that time still has to run
        return np.where(begun > 0, before[begun] - rest, 0)

    asked = np.array(intervals, dtype=np.int64)
    return int((busy_until(asked[:, 1]) - busy_until(asked[:, 0])).sum())
