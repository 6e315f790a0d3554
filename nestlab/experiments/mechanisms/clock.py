"""Schedules on a virtual clock: what overlaps with what, drawn with durations that are chosen, not measured."""

from __future__ import annotations

import pandas as pd

from nestlab.pipeline import Schedule, Stage
from nestlab.pipeline.schedule import Action
from nestlab.pipeline.shape import BY_PART
from nestlab.tracing import Event, Trace, breakdowns

# ms of a whole batch: exchange about 60 % and look-up about 50 % of the computation, which FORWARD and BACKWARD are.
MS = {
    Stage.LOAD: 2.0,
    Stage.H2D: 1.0,
    Stage.ROUTE: 1.5,
    Stage.PREPARE: 4.0,
    Stage.COMMIT: 0.5,
    Stage.EMB_EXCHANGE: 3.0,
    Stage.FORWARD: 3.5,
    Stage.BACKWARD: 6.5,
    Stage.GRAD_EXCHANGE: 3.0,
    Stage.DENSE_REDUCE: 1.0,
    Stage.UPDATE: 0.7,
    Stage.WRITEBACK: 1.0,
    Stage.RELEASE: 0.1,
}
HOW = "virtual clock, chosen durations"
_NS = 1_000_000
_WARM_UP, _AT_THE_END = 6, 6  # batches while the pipeline fills and drains


def virtual(schedule: Schedule, batches: int) -> Trace:
    """Every action begins when its lane is free, in list order, and what it waits for has ended.

    A part of a batch takes its share of the batch's time.
    """
    parts = 1 + max(entry.part for entry in schedule.entries if entry.stage in BY_PART)
    ends: dict = {}
    free: dict[str, int] = {}
    events, edges = [], []
    for action in schedule.unroll(batches):
        before = schedule.predecessors(action.key)
        start = max([free.get(action.lane, 0), *(ends[key] for key in before)])
        ends[action.key] = free[action.lane] = start + _duration_ns(action, parts)
        events.append(Event(0, action.lane, *action.key, start, ends[action.key]))
        edges += [((0, *key), (0, *action.key)) for key in before]
    lanes = tuple(lane.value for lane in schedule.lanes)
    return Trace(tuple(events), tuple(edges), lanes, {"schedule": schedule.name, "how": HOW, "dataset": "no data"})


def step_times(schedules: dict[str, Schedule], batches: int = 20) -> pd.DataFrame:
    """A row a schedule, once its pipeline is full: ms a step, and for how long of it computation waits for what.

    Where row exchange and dense reduce are under way at once the wait is that for rows; the dense reduce has what it
    adds to it (`Breakdown.exposed_comm`): a law of row exchanges can be seen in no other way.
    """
    rows = []
    for name, schedule in schedules.items():
        trace = virtual(schedule, batches)
        (whole,) = breakdowns(trace.between(*_full(trace)))
        waits = {
            "waits for look-up": whole.exposed_of("lookup"),
            "waits for rows": whole.exposed_comm.get("rows", 0),
            "waits for dense reduce": whole.exposed_comm.get("dense", 0),
        }
        waits["waits for samples (LOAD, H2D)"] = whole.idle - sum(waits.values())
        parts = {"ms a step": whole.span, "computing": whole.compute, **waits}
        rows.append({"schedule": name, **{column: ns / _NS / whole.steps for column, ns in parts.items()}})
    return pd.DataFrame(rows).round(3)


def _full(trace: Trace) -> tuple[int, int]:
    """From the end of the last batch of the warm-up to that of the last one before the pipeline drains."""
    spans = trace.step_spans(0)
    return spans[_WARM_UP - 1].end_ns, spans[len(spans) - 1 - _AT_THE_END].end_ns


def _duration_ns(action: Action, parts: int) -> int:
    share = parts if action.key.stage in BY_PART else 1
    return round(MS[action.key.stage] * _NS / share)
