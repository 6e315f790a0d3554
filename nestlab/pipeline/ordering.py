"""Which keys come before which: reachability over a window of actions, as bit sets, and orders that obey edges."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from nestlab.pipeline.schedule import Edge, Entry, Key

Pair = tuple[Key, Key]


class Reach:
    """What comes before each of `keys` by way of `pairs`; the list must obey the pairs.

    A set of keys is an integer, a bit a key: hundreds of keys are joined in one operation.
    """

    def __init__(self, keys: Sequence[Key], pairs: Iterable[Pair]) -> None:
        self._place = {key: place for place, key in enumerate(keys)}
        self._before = [0] * len(keys)
        for place, sources in enumerate(_sources(self._place, pairs)):
            for source in sources:
                self._before[place] |= self._before[source] | 1 << source

    def comes_before(self, first: Key, second: Key) -> bool:
        return bool(self._before[self._place[second]] >> self._place[first] & 1)


def reduced(keys: Sequence[Key], pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs that no chain of others implies (the transitive reduction), in the order of their targets."""
    before = [0] * len(keys)
    kept = []
    for place, sources in enumerate(_sources({key: place for place, key in enumerate(keys)}, pairs)):
        direct = []
        for source in sorted(sources, reverse=True):  # what leads to a later source cannot start at it
            if not before[place] >> source & 1:
                direct.append(source)
                before[place] |= before[source] | 1 << source
        kept += [(keys[source], keys[place]) for source in reversed(direct)]
    return kept


def list_order(entries: tuple[Entry, ...], edges: Iterable[Edge]) -> tuple[Entry, ...]:
    """The entries so that each comes after those of the same step that it waits for; else as they were.

    An edge stays within a step where the source's look-ahead is the target's plus the edge's delta.

    Raises:
        ValueError: edges within the step run in a circle.
    """
    place = {(entry.stage, entry.part): i for i, entry in enumerate(entries)}
    after: list[list[int]] = [[] for _ in entries]
    waits = [0] * len(entries)
    for edge in edges:
        source, target = place[edge.source, edge.source_part], place[edge.target, edge.target_part]
        if entries[source].ahead == entries[target].ahead + edge.delta:
            after[source].append(target)
            waits[target] += 1
    ready = [i for i, count in enumerate(waits) if not count]
    ordered = []
    while ready:
        ordered.append(first := heapq.heappop(ready))
        for target in after[first]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, target)
    if len(ordered) != len(entries):
        left = [str(entry.stage) for i, entry in enumerate(entries) if i not in ordered]
        raise ValueError(f"edges within a step run in a circle among {', '.join(left)}")
    return tuple(entries[i] for i in ordered)


def _sources(place: dict[Key, int], pairs: Iterable[Pair]) -> list[list[int]]:
    into: list[list[int]] = [[] for _ in place]
    for first, second in pairs:
        into[place[second]].append(place[first])
    return into
