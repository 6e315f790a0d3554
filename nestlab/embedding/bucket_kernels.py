"""Numba kernels of the bucketed index: each call works on the buckets of one thread, so that no lock is needed.

A bucket is an open-addressing table as in `kernels` (same slots, linear probing, group prefetching) in a region of its
own within one array: `starts[b]` its first slot, `masks[b]` its capacity less one. A key's bucket is taken from the top
16 bits of its hash, its home slot from the others.

A thread reads all the keys of a call and keeps those of its buckets: that costs every thread the hash of every key, and
spares a partition of the keys, its memory and a wait between threads.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.embedding._prefetch import prefetch
from nestlab.embedding.kernels import BLOCK, ROW_BITS
from nestlab.jit import inlined, jit
from nestlab.splitmix import GOLDEN, mix

MOST_BUCKETS = 1 << 16
_ROW_MASK = (1 << ROW_BITS) - 1


@inlined
def _hash(key, table):
    return mix(uint64(key) + uint64(table + 1) * GOLDEN)


@inlined
def _bucket(x, buckets):
    return (x >> uint64(48)) & uint64(buckets - 1)


@inlined
def _probe(slots, start, mask, home, key, table):
    """The slot of the region that holds the key, or the empty slot that ends its run; counted from the first slot."""
    at = home
    while True:
        word = slots[uint64(2) * (start + at) + uint64(1)]
        if word == 0 or (slots[uint64(2) * (start + at)] == key and (word >> ROW_BITS) == table):
            return at
        at = (at + uint64(1)) & mask


@inlined
def _step(buckets, first, last):
    """Keys read at once, so that a thread with a part of the buckets keeps about BLOCK of them."""
    return BLOCK * min(8, buckets // max(1, last - first))


@jit
def find(slots, starts, masks, ids, offsets, first, last, rows, unknown):
    """Writes to rows [U] the row, or −1, of each key whose bucket is in first … last−1; adds to unknown [buckets].

    ids [U], offsets [T+1], starts, masks, unknown [buckets]: all int64.
    """
    buckets = starts.size
    step, low, span = _step(buckets, first, last), uint64(first), uint64(last - first)
    hashes, places, homes = np.empty(step, np.uint64), np.empty(step, np.int64), np.empty(step, np.uint64)
    for table in range(offsets.size - 1):
        for begin in range(offsets[table], offsets[table + 1], step):
            count = 0
            for i in range(begin, min(begin + step, offsets[table + 1])):
                x = _hash(ids[i], table)
                hashes[count], places[count] = x, i
                count += np.int64(_bucket(x, buckets) - low < span)  # no branch: it would be missed half the time
            for j in range(count):
                b = _bucket(hashes[j], buckets)
                home = uint64(2) * (uint64(starts[b]) + (hashes[j] & uint64(masks[b])))
                homes[j] = home
                prefetch(slots, home)
            for j in range(count):
                x, key, word = hashes[j], ids[places[j]], slots[homes[j] + uint64(1)]
                if word != 0 and not (slots[homes[j]] == key and (word >> ROW_BITS) == table):  # not at home: seldom
                    b = _bucket(x, buckets)
                    start, mask = uint64(starts[b]), uint64(masks[b])
                    word = slots[uint64(2) * (start + _probe(slots, start, mask, x & mask, key, table)) + uint64(1)]
                rows[places[j]] = (word & _ROW_MASK) - 1
                if word == 0:
                    unknown[_bucket(x, buckets)] += 1


@jit
def give_rows(rows, fresh, free, allocator):
    """Each −1 in rows [U] becomes a row, in order; the positions go to `fresh`. Returns how many.

    Freed rows first (the last allocator[1] of `free`, last one first), then never used ones from allocator[0] on.
    """
    count = 0
    for i in range(rows.size):
        if rows[i] < 0:
            if allocator[1] > 0:
                allocator[1] -= 1
                rows[i] = free[allocator[1]]
            else:
                rows[i] = allocator[0]
                allocator[0] += 1
            fresh[count] = i
            count += 1
    return count


@jit
def insert(slots, starts, masks, ids, offsets, first, last, fresh, rows):
    """Puts the unknown keys at positions fresh [n], ascending, whose bucket is in first … last−1, with their rows."""
    step, low, span = _step(starts.size, first, last), uint64(first), uint64(last - first)
    hashes, places, tables = np.empty(step, np.uint64), np.empty(step, np.int64), np.empty(step, np.int64)
    table = 0
    for begin in range(0, fresh.size, step):
        count = 0
        for i in range(begin, min(begin + step, fresh.size)):
            while fresh[i] >= offsets[table + 1]:
                table += 1
            x = _hash(ids[fresh[i]], table)
            hashes[count], places[count], tables[count] = x, fresh[i], table
            count += np.int64(_bucket(x, starts.size) - low < span)
        for j in range(count):
            b = _bucket(hashes[j], starts.size)
            prefetch(slots, uint64(2) * (uint64(starts[b]) + (hashes[j] & uint64(masks[b]))))
        for j in range(count):
            x, key = hashes[j], ids[places[j]]
            b = _bucket(x, starts.size)
            start, mask = uint64(starts[b]), uint64(masks[b])
            at = uint64(2) * (start + _probe(slots, start, mask, x & mask, key, tables[j]))
            slots[at] = key
            slots[at + uint64(1)] = (tables[j] << ROW_BITS) | (rows[places[j]] + 1)


@jit
def rehash(slots, starts, masks, new_starts, new_masks, first, last):
    """Copies each bucket of first … last−1 that has a new region there; the new regions are empty."""
    for b in range(first, last):
        if new_starts[b] != starts[b]:
            start, mask = uint64(new_starts[b]), uint64(new_masks[b])
            for source in range(starts[b], starts[b] + masks[b] + 1):
                key, word = slots[2 * source], slots[2 * source + 1]
                if word != 0:
                    table = word >> ROW_BITS
                    at = uint64(2) * (start + _probe(slots, start, mask, _hash(key, table) & mask, key, table))
                    slots[at] = key
                    slots[at + uint64(1)] = word


@inlined
def _close_gap(slots, start, mask, hole):
    """Backward-shift deletion within one region, as in `kernels`."""
    at = hole
    while True:
        at = (at + uint64(1)) & mask
        key, word = slots[uint64(2) * (start + at)], slots[uint64(2) * (start + at) + uint64(1)]
        if word == 0:
            break
        home = _hash(key, word >> ROW_BITS) & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            slots[uint64(2) * (start + hole)] = key
            slots[uint64(2) * (start + hole) + uint64(1)] = word
            hole = at
    slots[uint64(2) * (start + hole)] = 0
    slots[uint64(2) * (start + hole) + uint64(1)] = 0


@jit
def remove(slots, starts, masks, ids, offsets, first, last, rows, removed):
    """Removes the keys whose bucket is in first … last−1: rows [U] gets their rows or −1; adds to removed [buckets]."""
    low, span = uint64(first), uint64(last - first)
    for table in range(offsets.size - 1):
        for i in range(offsets[table], offsets[table + 1]):
            x = _hash(ids[i], table)
            b = _bucket(x, starts.size)
            if b - low < span:
                start, mask = uint64(starts[b]), uint64(masks[b])
                at = _probe(slots, start, mask, x & mask, ids[i], table)
                rows[i] = (slots[uint64(2) * (start + at) + uint64(1)] & _ROW_MASK) - 1
                if rows[i] >= 0:
                    _close_gap(slots, start, mask, at)
                    removed[b] += 1
