"""What an owner makes of the requests that came: its keys, each once, and whose rows go out in which micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.embedding import KeySet, deduplicate
from nestlab.exchange import routing_kernels
from nestlab.exchange.key_messages import Entries
from nestlab.exchange.requests import Request


@dataclass(frozen=True, eq=False)
class Owned:
    """The keys of one group that this rank owns. S shards, N micro-batches.

    Attributes:
        keys: table-major, within a table in the order (requester, first appearance), whatever arrives when.
        places: [N] int64 arrays, places in `keys` of the rows that go out, requester by requester; None for all of
            them, in their order.
        counts: [N, S] int64, rows for each requester.
    """

    keys: KeySet
    places: tuple[np.ndarray | None, ...]
    counts: np.ndarray


def own_all(request: Request) -> Owned:
    """On one shard: the rank's own keys as they are."""
    if len(request.parts) == 1:
        return Owned(request.keys, (None,), request.counts)
    every = np.arange(len(request.keys), dtype=np.int64)
    places, counts = _split(request.entries, every, np.array([every.size]), len(request.parts))
    return Owned(request.keys, places, counts)


def merge(received: list[Entries], wanted: np.ndarray, parts: int) -> Owned:
    """Deduplicates over requesters and sums their counts and clicks, requester by requester.

    Args:
        received: [S] from each requester, table-major; wanted: [S, T] int64, how many of each table.
    """
    entries, (shards, tables) = Entries.join(received), wanted.shape
    offsets = np.concatenate(([0], np.cumsum(wanted.reshape(-1))))
    ids, ends, inverse = deduplicate(entries.ids, offsets, np.tile(np.arange(tables), shards), tables)
    keys = KeySet(ids, ends, *_sums(entries, inverse, ids.size))
    by_requester = wanted.sum(axis=1)
    if parts == 1:
        return Owned(keys, (inverse,), by_requester[None])
    places, counts = _split(entries, inverse, np.cumsum(by_requester), parts)
    return Owned(keys, places, counts)


def _sums(entries: Entries, inverse: np.ndarray, keys: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    if entries.counts is None or entries.clicks is None:
        return None, None
    counts, clicks = np.zeros(keys, np.int64), np.zeros(keys)
    routing_kernels.add_up(inverse, entries.counts, entries.clicks, counts, clicks)
    return counts, clicks


def _split(entries: Entries, inverse: np.ndarray, ends: np.ndarray, parts: int):
    """The places [N] and counts [N, S] of each micro-batch; `ends` [S] are the ends of the requesters' entries."""
    assert entries.masks is not None
    into = np.empty(int(np.bitwise_count(entries.masks).sum()), np.int64)
    counts = np.empty((parts, ends.size), np.int64)
    routing_kernels.split_entries(entries.masks, inverse, ends, into, counts)
    return tuple(np.split(into, np.cumsum(counts.sum(axis=1))[:-1])), counts
