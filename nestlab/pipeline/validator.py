"""Is a schedule safe? Every required edge must be implied by its edges, and its list order must obey them."""

from __future__ import annotations

import networkx as nx

from nestlab.pipeline.edges import WINDOW, Accesses, plain_order, required_pairs
from nestlab.pipeline.schedule import Schedule


class InvalidSchedule(ValueError):
    """Names what is missing or contradictory; `problems` holds one line each."""

    def __init__(self, schedule: Schedule, problems: list[str]) -> None:
        self.problems = problems
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"schedule '{schedule.name}' is not safe: {shown}")


def validate(schedule: Schedule, accesses: Accesses, batches: int | None = None) -> None:
    """Raises InvalidSchedule unless every execution that obeys the schedule's edges equals the plain loop.

    The order in which a lane happens to run is not counted: an edge that matters must be written down.
    """
    problems = find_problems(schedule, accesses, batches)
    if problems:
        raise InvalidSchedule(schedule, problems)


def find_problems(schedule: Schedule, accesses: Accesses, batches: int | None = None) -> list[str]:
    """One line a problem, none for a safe schedule. None: as many batches as its longest edge needs to be seen."""
    batches = batches or max(WINDOW, 2 - schedule.reach)
    actions = schedule.unroll(batches)
    place = {action.key: i for i, action in enumerate(actions)}
    if len(place) != len(actions):
        return [f"{len(actions) - len(place)} actions occur twice"]
    graph = nx.DiGraph(schedule.pairs(batches))
    graph.add_nodes_from(place)
    unknown = [f"an edge names {key}, which no entry of the step is" for key in graph if key not in place]
    if unknown:
        return unknown
    if not nx.is_directed_acyclic_graph(graph):
        return ["its edges run in a circle: " + " → ".join(str(edge[0]) for edge in nx.find_cycle(graph))]
    backwards = [(a, b) for a, b in graph.edges if place[a] > place[b]]
    return [f"list order breaks {a} → {b}" for a, b in backwards] + _missing(schedule, graph, accesses, batches)


def _missing(schedule: Schedule, graph: nx.DiGraph, accesses: Accesses, batches: int) -> list[str]:
    after = {key: nx.descendants(graph, key) for key in graph}
    pairs = required_pairs(plain_order(schedule.entries, batches), accesses)
    return [f"required edge missing: {a} → {b}" for a, b in pairs if b not in after[a]]
