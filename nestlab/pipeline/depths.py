"""Depth over time: how many batches are in flight may change from step to step, and results do not.

A schedule is built for its greatest depth. With less, an entry runs fewer batches ahead, the edges stay as they are,
and the list order is made anew. Nothing is drained for a change: a step with more depth plans more batches of what runs
ahead, one with less plans none until the batch computed has come nearer (`nestlab.pipeline.executors.Progress`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nestlab.errors import UserError
from nestlab.pipeline.ordering import list_order
from nestlab.pipeline.schedule import Schedule
from nestlab.techniques import Techniques

Depth = Callable[[int], int]  # step → batches in flight, from that step on until it says otherwise


def at_depth(schedule: Schedule, depth: int) -> Schedule:
    """The schedule with at most `depth` batches in flight; itself where it has no more."""
    if depth > schedule.most_ahead:
        return schedule
    entries = tuple(replace(entry, ahead=min(entry.ahead, depth - 1)) for entry in schedule.entries)
    return replace(schedule, entries=list_order(entries, schedule.edges))


def ramp(depth: int, over: int) -> Depth:
    """1 → `depth` in equal stretches over the first `over` steps (NestPipe's article: start shallow, then deepen).

    Depends on the step alone: a run that is taken up again at some step has the depth it would have had.

    Raises:
        UserError: no step to rise over, or no depth to rise to.
    """
    if over < 1 or depth < 1:
        raise UserError(f"depth schedule: a ramp to depth {depth} over {over} steps; both must be at least 1")
    return lambda step: min(depth, 1 + step * (depth - 1) // over)


def depth_over_time(techniques: Techniques) -> Depth | None:
    """What the flags say; None: the same depth all the time."""
    if techniques.depth_schedule == "constant":
        return None
    least, rise = techniques.staleness + 1, ramp(techniques.pipeline_depth, techniques.ramp_over)
    return lambda step: max(least, rise(step))
