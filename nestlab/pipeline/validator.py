"""Is a schedule safe? Every required edge must be implied by its edges, and its list order must obey them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError
from itertools import pairwise

from nestlab.exchange import Channel
from nestlab.pipeline.derivation import CHANNELS, WINDOW, Accesses, plain_order, required_pairs, topological
from nestlab.pipeline.ordering import Pair, Reach
from nestlab.pipeline.schedule import Key, Schedule

LONGEST_EVERY = 3  # a longer interval between two SYNCs shows no hazard that this one does not


class InvalidSchedule(ValueError):
    """Names what is missing or contradictory; `problems` holds one line each."""

    def __init__(self, schedule: Schedule, problems: list[str]) -> None:
        self.problems = problems
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"schedule '{schedule.name}' is not safe: {shown}")


def validate(
    schedule: Schedule, accesses: Accesses, batches: int | None = None, demanded: list[Pair] | None = None
) -> None:
    """Raises InvalidSchedule unless every execution that obeys the schedule's edges equals the plain loop.

    With staleness that is the stale loop. The collectives of a channel must come in one order in all of them. The order
    in which a lane happens to run is not counted: an edge that matters must be written down.
    """
    problems = find_problems(schedule, accesses, batches, demanded)
    if problems:
        raise InvalidSchedule(schedule, problems)


def demands(schedule: Schedule, accesses: Accesses, batches: int) -> list[Pair]:
    """What data require in a window, for those who validate the same step with many sets of edges."""
    entries = _shortened(schedule).entries
    return required_pairs(plain_order(entries, batches, schedule.shape.staleness if schedule.shape else 0), accesses)


def check_list_order(schedule: Schedule) -> None:
    """Raises InvalidSchedule where the list order breaks an edge: all that a change of depth can spoil."""
    problems = _backwards(schedule, _window(schedule))
    if problems:
        raise InvalidSchedule(schedule, problems)


def check_collectives(schedules: Sequence[Schedule]) -> None:
    """Raises InvalidSchedule unless the collectives of each channel have one order, the same in every rank's schedule.

    A rank that meets its peers in another order waits for ever, or takes their bytes for something else.
    """
    batches = max(_window(schedule) for schedule in schedules)
    expected = collectives(schedules[0], batches)
    for rank, schedule in enumerate(schedules):
        problems = _unordered(schedule, _reach(schedule, batches), batches) + _unordered_when_short(schedule)
        for channel, keys in collectives(schedule, batches).items():
            if keys != expected[channel]:
                problems.append(_differs(rank, channel, keys, expected[channel]))
        if problems:
            raise InvalidSchedule(schedule, problems)


def find_problems(
    schedule: Schedule, accesses: Accesses, batches: int | None = None, demanded: list[Pair] | None = None
) -> list[str]:
    """One line a problem, none for a safe schedule. None: as many batches as its longest edge needs to be seen.

    `demanded` is what `demands` gives for so many batches; None: found here.
    """
    schedule = _shortened(schedule)
    batches = batches or _window(schedule)
    keys = [action.key for action in schedule.unroll(batches)]
    known = set(keys)
    if len(known) != len(keys):
        return [f"{len(keys) - len(known)} actions occur twice"]
    pairs = schedule.pairs(batches)
    unknown = [key for key in dict.fromkeys(first for first, _ in pairs) if key not in known]
    if unknown := unknown or _strays(schedule, known, batches):
        return [f"an edge names {key}, which no entry of the step is" for key in unknown]
    try:
        reach = Reach(topological(schedule, pairs, batches), pairs)
    except CycleError as error:
        return ["its edges run in a circle: " + " → ".join(map(str, error.args[1]))]
    pairs = demands(schedule, accesses, batches) if demanded is None else demanded
    missing = [f"required edge missing: {a} → {b}" for a, b in pairs if not reach.comes_before(a, b)]
    return (
        _backwards(schedule, batches) + missing + _unordered(schedule, reach, batches) + _unordered_when_short(schedule)
    )


def collectives(schedule: Schedule, batches: int) -> dict[Channel, list[Key]]:
    """Those of a window in list order, channel by channel."""
    found: dict[Channel, list[Key]] = {channel: [] for channel in Channel}
    for action in schedule.unroll(batches):
        if action.key.stage in CHANNELS:
            found[CHANNELS[action.key.stage]].append(action.key)
    return found


def _unordered_when_short(schedule: Schedule) -> list[str]:
    """The same where the data end before collectives that run ahead have a batch to run ahead of."""
    return [
        problem
        for batches in range(1, schedule.forward_reach + 1)
        for problem in _unordered(schedule, _reach(schedule, batches), batches)
    ]


def _window(schedule: Schedule) -> int:
    """Batches that show every edge once, and SYNC twice where there is one."""
    every = max(entry.every for entry in schedule.entries)
    return max(WINDOW, 2 - schedule.reach, 2 * every + 2) + schedule.forward_reach


def _shortened(schedule: Schedule) -> Schedule:
    entries = tuple(replace(entry, every=min(entry.every, LONGEST_EVERY)) for entry in schedule.entries)
    edges = tuple(replace(edge, every=min(edge.every, LONGEST_EVERY)) for edge in schedule.edges)
    return replace(schedule, entries=entries, edges=edges)


def _reach(schedule: Schedule, batches: int) -> Reach:
    pairs = schedule.pairs(batches)
    return Reach(topological(schedule, pairs, batches), pairs)


def _strays(schedule: Schedule, known: set[Key], batches: int) -> list[Key]:
    """Targets that no entry is: such an edge never comes up when predecessors are asked for."""
    there = {(entry.stage, entry.part) for entry in schedule.entries}
    strays = (edge for edge in schedule.edges if (edge.target, edge.target_part) not in there)
    return [Key(edge.target, batches - 1, edge.target_part) for edge in strays]


def _backwards(schedule: Schedule, batches: int) -> list[str]:
    place = {action.key: i for i, action in enumerate(schedule.unroll(batches))}
    return [f"list order breaks {a} → {b}" for a, b in schedule.pairs(batches) if place[a] > place[b]]


def _unordered(schedule: Schedule, reach: Reach, batches: int) -> list[str]:
    chains = (pairwise(keys) for keys in collectives(schedule, batches).values())
    pairs = [pair for chain in chains for pair in chain if not reach.comes_before(*pair)]
    return [f"required edge missing: {a} → {b} (one order of collectives)" for a, b in pairs]


def _differs(rank: int, channel: Channel, keys: list[Key], expected: list[Key]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(keys, expected, strict=False)) if a != b), None)
    if place is None:
        return f"rank {rank} has {len(keys)} collectives on channel '{channel}', rank 0 has {len(expected)}"
    return f"rank {rank} has {keys[place]} on channel '{channel}' where rank 0 has {expected[place]}"
