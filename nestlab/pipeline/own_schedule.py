"""Schedules whose builder comes from outside: the same checks as for the suite's own, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nestlab import plugins
from nestlab.errors import UserError
from nestlab.pipeline.schedule import Entry, Schedule
from nestlab.pipeline.validator import find_problems

if TYPE_CHECKING:
    from nestlab.pipeline.shape import Shape

_SHOWN = 3  # problems a message names


def own_schedule(shape: Shape, reference: Schedule) -> Schedule:
    """What the builder called `shape.builder` makes, shown to keep the plain loop's results.

    Args:
        reference: any schedule of that shape: it has the actions that a step must have.

    Raises:
        UserError: there is no such builder, or its schedule has other actions or lacks a required edge.
    """
    name = f"schedule={shape.builder}"
    schedule = plugins.schedule(shape.builder)(shape)
    if not isinstance(schedule, Schedule):
        raise UserError(f"{name}: it gave a {type(schedule).__name__}, not a nestlab.pipeline.Schedule")
    schedule = replace(schedule, shape=shape)
    problems = _other_actions(schedule, reference) or find_problems(schedule, shape.accesses)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UserError(f"{name}: not safe: {'; '.join(problems[:_SHOWN])}{more}; see docs/extend.md")
    return schedule


def _other_actions(schedule: Schedule, reference: Schedule) -> list[str]:
    """One line an action that the step lacks or has beyond what there is to do: no edge would show it."""
    there, wanted = dict.fromkeys(map(_action, schedule.entries)), dict.fromkeys(map(_action, reference.entries))
    lacks = [f"the step lacks {each}" for each in wanted if each not in there]
    return lacks + [f"the step has {each}, which is not asked for" for each in there if each not in wanted]


def _action(entry: Entry) -> str:
    part = f",{entry.part}" if entry.part >= 0 else ""
    return f"{entry.stage}(t{part})" + (f" every {entry.every} batches" if entry.every > 1 else "")
