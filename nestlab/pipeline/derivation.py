"""Required edges from what the actions declare, and the one order of collectives on each channel.

Data come from `accesses`: two actions of which one writes what the other touches keep the order of the reference loop.
Collectives have no such reference: whichever order a schedule's list has is to be the order on every rank, so each is
chained to the next of its channel, between batches too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import chain, pairwise

from nestlab.exchange import Channel
from nestlab.pipeline.accesses import Access, Resource
from nestlab.pipeline.ordering import Reach, reduced
from nestlab.pipeline.schedule import Edge, Entry, Key, Schedule, Stage
from nestlab.pipeline.shape import FAMILIES, LOOK_UP, Shape

Accesses = Callable[[Key], list[Access]]

# A hazard that a window of this many batches does not show would need an edge over more batches than any technique has.
WINDOW = 6

CHANNELS = {
    Stage.ROUTE: Channel.KEYS,
    Stage.EMB_EXCHANGE: Channel.ROWS,
    Stage.GRAD_EXCHANGE: Channel.ROWS,
    Stage.TT_EXCHANGE: Channel.TABLES,
    Stage.TT_GRAD_EXCHANGE: Channel.TABLES,
    Stage.DENSE_REDUCE: Channel.DENSE,
    Stage.CORE_REDUCE: Channel.DENSE,
    Stage.CLIP: Channel.DENSE,
    Stage.SYNC: Channel.REPLICAS,
}


def required_pairs(keys: Iterable[Key], accesses: Accesses) -> list[tuple[Key, Key]]:
    """The pairs of conflicting actions, in the order of `keys`, which is that of the reference loop.

    Whatever came before a write of all of a resource is in conflict with that write: what comes after it is paired with
    the write alone, and with the rest through it. So pairs grow as the actions do, and not as their square.
    """
    readers: dict[Resource, list[tuple[Key, Access]]] = {}
    writers: dict[Resource, list[tuple[Key, Access]]] = {}
    pairs = []
    for key in keys:
        own = accesses(key)
        sources: dict[Key, None] = {}
        for access in own:
            earlier = writers.get(access.resource, [])
            if access.write:
                earlier = earlier + readers.get(access.resource, [])
            sources |= {source: None for source, other in earlier if access.conflicts(other)}
        pairs += [(source, key) for source in sources]
        for access in own:
            if access.write and access.rows is None:
                readers[access.resource], writers[access.resource] = [], []
            (writers if access.write else readers).setdefault(access.resource, []).append((key, access))
    return pairs


def required_edges(entries: tuple[Entry, ...], shape: Shape) -> tuple[Edge, ...]:
    """All required edges of a step: data's, SYNC's, and of the collectives' those that the former do not imply.

    `entries` are in an order that has each channel's collectives as they are to be.
    """
    always = tuple(entry for entry in entries if entry.every == 1)
    edges = derive(always, shape.accesses, shape.staleness)
    edges += tuple(_sync_edges(entries, shape))
    edges += _needed(entries, edges, list(collective_order(entries)))
    for batches in range(1, shape.staleness + 1):
        edges += _needed(entries, edges, list(short_runs(entries)), batches)
    return edges


def derive(entries: tuple[Entry, ...], accesses: Accesses, staleness: int = 0) -> tuple[Edge, ...]:
    """The edges that data require as templates, without those that others imply, in a fixed order.

    Taken from a batch in mid-stream, and then from the first and last ones: an edge that a later batch's look-up
    implies (staleness) is needed where there is no such batch.
    """
    keys = plain_order(entries, WINDOW + staleness, staleness)
    found = reduced(keys, required_pairs(keys, accesses))
    found.sort(key=lambda pair: pair[1].batch != WINDOW - 1)
    edges: dict[tuple, Edge] = {}
    for source, target in found:
        edge = Edge(source.stage, target.stage, source.batch - target.batch, source.part, target.part)
        if edge.ends not in edges:
            edges[edge.ends] = replace(edge, reason=_reason(source, target, accesses))
    return tuple(edges.values())


def plain_order(entries: tuple[Entry, ...], batches: int, staleness: int = 0) -> list[Key]:
    """Batch by batch, part by part, stage by stage: the order whose result every schedule must reproduce.

    With staleness k it is that of the stale loop, whose look-up stages run k batches ahead of the others.
    """
    stages = list(Stage)

    def within(entry: Entry) -> tuple[int, int, int]:
        rank = stages.index(entry.stage)
        for family in FAMILIES:
            if entry.stage in family.stages:
                return stages.index(family.stages[0]), family.turn * entry.part, rank
        return rank, 0, rank

    ahead = {entry: staleness if entry.stage in LOOK_UP else 0 for entry in entries}
    ordered = sorted(entries, key=within)
    return [
        Key(entry.stage, step + ahead[entry], entry.part)
        for step in range(-staleness, batches)
        for entry in ordered
        if 0 <= step + ahead[entry] < batches and entry.has(step + ahead[entry])
    ]


def collective_order(entries: Sequence[Entry]) -> Iterator[Edge]:
    """Edges that chain the collectives of each channel in list order, from one step to the next as well.

    Where some run ahead of others the first and the last steps lack a few; those that are there have a chain too.
    """
    for channel in Channel:
        own = [entry for entry in entries if CHANNELS.get(entry.stage) is channel]
        ahead = sorted({entry.ahead for entry in own})
        filling = ([entry for entry in own if entry.ahead >= least] for least in ahead)
        draining = ([entry for entry in own if entry.ahead <= most] for most in ahead[:-1])
        for there in (*filling, *draining):
            yield from (_chained(a, b, a.ahead - b.ahead, channel) for a, b in pairwise(there))
            yield _chained(there[-1], there[0], there[-1].ahead - there[0].ahead - there[0].every, channel)


def short_runs(entries: Sequence[Entry]) -> Iterator[Edge]:
    """What chains collectives that run ahead to those that do not where the data end before the look-ahead is filled.

    A longer run has batches between, over which `collective_order` goes: there these say nothing new.
    """
    for channel in Channel:
        own = [entry for entry in entries if CHANNELS.get(entry.stage) is channel]
        for further, nearer in pairwise(sorted({entry.ahead for entry in own}, reverse=True)):
            last = [entry for entry in own if entry.ahead == further][-1]
            first = next(entry for entry in own if entry.ahead == nearer)
            yield from (_chained(last, first, delta, channel) for delta in range(further - nearer))


def _sync_edges(entries: tuple[Entry, ...], shape: Shape) -> Iterator[Edge]:
    """Those from and to a SYNC that is not in every batch: as if it were, for it touches no batch but its neighbours.

    What may conflict with it comes in batch order, so that waiting for the last of a kind is waiting for all.
    """
    if shape.sync_every > 1:
        for edge in derive(tuple(replace(entry, every=1) for entry in entries), shape.accesses):
            if Stage.SYNC in (edge.source, edge.target):
                yield replace(edge, every=shape.sync_every if edge.source is Stage.SYNC else 1)


def _needed(
    entries: tuple[Entry, ...], known: tuple[Edge, ...], asked: list[Edge], batches: int | None = None
) -> tuple[Edge, ...]:
    """Those asked for that no chain of others implies, in any batch of a window, or of a run of so many batches."""
    there = {edge.ends for edge in known}
    asked = [edge for edge in dict.fromkeys(asked) if edge.ends not in there]
    schedule = Schedule("", entries, (*known, *asked))
    batches = batches or WINDOW + schedule.forward_reach
    keys = topological(schedule, schedule.pairs(batches), batches)
    known_pairs = replace(schedule, edges=known).pairs(batches)
    pairs = {edge: _pairs_of(edge, keys, batches) for edge in asked}
    for edge in asked:
        own = pairs.pop(edge)
        reach = Reach(keys, [*known_pairs, *chain.from_iterable(pairs.values())])
        if not all(reach.comes_before(*pair) for pair in own):
            pairs[edge] = own
    return tuple(edge for edge in asked if edge in pairs)


def _pairs_of(edge: Edge, keys: Iterable[Key], batches: int) -> list[tuple[Key, Key]]:
    targets = (key for key in keys if (key.stage, key.part) == (edge.target, edge.target_part) and edge.has(key))
    return [(edge.source_of(key), key) for key in targets if 0 <= key.batch + edge.delta < batches]


def topological(schedule: Schedule, pairs: Iterable[tuple[Key, Key]], batches: int) -> list[Key]:
    """The actions of a window in some order that obeys the pairs.

    Raises:
        CycleError: there is none.
    """
    sorter = TopologicalSorter({action.key: () for action in schedule.unroll(batches)})
    for first, second in pairs:
        sorter.add(second, first)
    return list(sorter.static_order())


def _conflict(first: list[Access], second: list[Access]) -> bool:
    return any(a.conflicts(b) for a in first for b in second)


def _reason(source: Key, target: Key, accesses: Accesses) -> str:
    shared = [a.resource.name for a in accesses(source) if _conflict([a], accesses(target))]
    return ", ".join(dict.fromkeys(shared))


def _chained(source: Entry, target: Entry, delta: int, channel: Channel) -> Edge:
    reason = f"one order of collectives: {channel}"
    return Edge(source.stage, target.stage, delta, source.part, target.part, reason=reason, every=source.every)
