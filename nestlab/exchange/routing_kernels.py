"""Numba kernels of key routing: by owner, by micro-batch, and back together at the owner.

All are single-threaded and release the GIL. A mask is a uint64 whose bit i says that micro-batch i uses a key.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.jit import jit


@jit
def order_by_owner(owners, offsets, counts, places):
    """A stable counting sort of unique keys by owner; within an owner they stay table-major.

    Args:
        owners: [U] int64, the shard of each key; offsets: [T+1] int64, the runs of the tables.
        counts: [S, T] int64, zeros; gets the keys of each owner and table.
        places: [U] int64; gets the place of each key in the sorted list.
    """
    shards, tables = counts.shape
    for table in range(tables):
        for u in range(offsets[table], offsets[table + 1]):
            counts[owners[u], table] += 1
    starts = np.empty((shards, tables), np.int64)
    start = 0
    for shard in range(shards):
        for table in range(tables):
            starts[shard, table] = start
            start += counts[shard, table]
    for table in range(tables):
        for u in range(offsets[table], offsets[table + 1]):
            places[u] = starts[owners[u], table]
            starts[owners[u], table] += 1


@jit
def put(values, places, into):
    """into[places[u]] = values[u]."""
    for u in range(values.size):
        into[places[u]] = values[u]


@jit
def follow(positions, places):
    """positions[i] = places[positions[i]], in place."""
    for i in range(positions.size):
        positions[i] = places[positions[i]]


@jit
def mark_parts(positions, lengths, bounds, masks, cells):
    """Which micro-batches use which key.

    Args:
        positions: [nnz] int64, feature-major, the key of each id.
        lengths: [F, B] int64, bag lengths; bounds: [N+1] int64, the first sample of each micro-batch, and B.
        masks: [U] uint64, zeros; gets bit i where micro-batch i uses the key.
        cells: [F, N] int64; gets the ids of each feature in each micro-batch.
    """
    at = 0
    for feature in range(lengths.shape[0]):
        for part in range(bounds.size - 1):
            bit, begin = uint64(1) << uint64(part), at
            for sample in range(bounds[part], bounds[part + 1]):
                at += lengths[feature, sample]
            for i in range(begin, at):
                masks[positions[i]] |= bit
            cells[feature, part] = at - begin


@jit
def split_positions(positions, cells, masks, owner_ends, into, counts):
    """Positions into each micro-batch's own list: the keys that have its bit, in the order of the whole list.

    Args:
        positions, cells, masks: as `mark_parts` has them; owner_ends: [S] int64, where each owner's run of keys ends.
        into: [nnz] int64; gets the positions micro-batch by micro-batch, feature-major within one.
        counts: [N, S] int64; gets the length of each micro-batch's list, owner by owner.
    """
    features, parts = cells.shape
    starts = np.empty((features, parts), np.int64)
    start = 0
    for feature in range(features):
        for part in range(parts):
            starts[feature, part] = start
            start += cells[feature, part]
    ranks = np.empty(masks.size, np.int32)
    at = 0
    for part in range(parts):
        total, u = 0, 0
        for shard in range(owner_ends.size):
            before = total
            while u < owner_ends[shard]:
                ranks[u] = total
                total += np.int64((masks[u] >> uint64(part)) & uint64(1))
                u += 1
            counts[part, shard] = total - before
        for feature in range(features):
            start = starts[feature, part]
            for i in range(start, start + cells[feature, part]):
                into[at] = ranks[positions[i]]
                at += 1


@jit
def split_entries(masks, inverse, ends, into, counts):
    """The places of the rows that an owner sends, micro-batch by micro-batch.

    Args:
        masks: [n] uint64 of the entries received, requester by requester; ends: [S] int64, where each one's run ends.
        inverse: [n] int64, the place of each entry in the owner's keys.
        into: [Σ bits] int64; gets the places, micro-batch by micro-batch, requester by requester.
        counts: [N, S] int64; gets how many each requester has in each micro-batch.
    """
    at = 0
    for part in range(counts.shape[0]):
        i = 0
        for shard in range(ends.size):
            before = at
            while i < ends[shard]:
                if (masks[i] >> uint64(part)) & uint64(1):
                    into[at] = inverse[i]
                    at += 1
                i += 1
            counts[part, shard] = at - before


@jit
def add_up(inverse, entry_counts, entry_clicks, counts, clicks):
    """Adds what each entry [n] counts to its key [U], in the order of the entries; int64 and float64."""
    for i in range(inverse.size):
        counts[inverse[i]] += entry_counts[i]
        clicks[inverse[i]] += entry_clicks[i]
