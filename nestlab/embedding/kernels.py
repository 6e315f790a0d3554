"""Numba kernels of the key index and of deduplication: open addressing with linear probing.

One slot is 16 bytes, so that a probe touches one cache line: word 0 is the id, word 1 is `table << 40 | (row + 1)`, and
word 1 = 0 marks an empty slot. Both id and table are compared in full: two keys never collide, whatever they hash to.

DRAM latency is hidden by software pipelining: a block of keys is hashed and prefetched first, then probed (the idea of
group prefetching: Chen, Ailamaki, Gibbons, Mowry, "Improving hash join performance through prefetching", 2007).

All kernels are single-threaded and release the GIL.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import inlined, jit
from nestlab.splitmix import GOLDEN, mix

ROW_BITS = 40  # rows per group: 2^40 − 1
TABLE_BITS = 23  # tables per group; 23 and not 24, so that word 1 is never negative
BLOCK = 32  # keys hashed ahead of the probes, see docs/log.md
AHEAD = 16  # keys between the hash and the probe of a look-up; a power of two

_ROW_MASK = (1 << ROW_BITS) - 1


@inlined
def _home(key, salt, mask):
    """Home slot of an id: its bits mixed, salted by its table, so that structured ids spread."""
    return mix(uint64(key) + salt) & mask


@inlined
def _salt(table):
    return uint64(table + 1) * GOLDEN


@inlined
def _probe(slots, mask, home, key, table):
    """The slot that holds the key, or the empty slot that ends its run."""
    at = home
    while True:
        word = slots[uint64(2) * at + uint64(1)]
        if word == 0 or (slots[uint64(2) * at] == key and (word >> ROW_BITS) == table):
            return at
        at = (at + uint64(1)) & mask


@jit
def find(slots, ids, offsets, rows):
    """Writes to rows [U] the row of each key, or −1. `offsets` [T+1] are the runs of the tables in `ids` [U].

    Each key is probed AHEAD keys after its hash, from a ring: a tenth faster than block by block.
    """
    mask = uint64(slots.size // 2 - 1)
    homes = np.empty(AHEAD, np.uint64)
    for table in range(offsets.size - 1):
        salt, first, end = _salt(table), offsets[table], offsets[table + 1]
        for i in range(first, end + AHEAD):
            if i >= first + AHEAD:
                at = _probe(slots, mask, homes[i % AHEAD], ids[i - AHEAD], table)
                rows[i - AHEAD] = (slots[uint64(2) * at + uint64(1)] & _ROW_MASK) - 1
            if i < end:
                home = _home(ids[i], salt, mask)
                homes[i % AHEAD] = home
                prefetch(slots, uint64(2) * home)


@inlined
def _take_row(free, allocator):
    """A freed row if there is one (allocator[1] of them in `free`), else the next never used one, allocator[0]."""
    if allocator[1] > 0:
        allocator[1] -= 1
        return free[allocator[1]]
    allocator[0] += 1
    return allocator[0] - 1


@jit
def find_or_insert(slots, ids, offsets, rows, fresh, free, allocator, progress):
    """As `find`, and inserts unknown keys, whose positions go to `fresh` in order.

    Stops, to be called again after growth, when the index is half full. `progress` int64 [4] carries on between the
    calls: keys done, number of fresh keys, keys in the index, the most keys this index may hold.
    """
    mask = uint64(slots.size // 2 - 1)
    homes = np.empty(BLOCK, np.uint64)
    for table in range(offsets.size - 1):
        salt = _salt(table)
        for begin in range(max(progress[0], offsets[table]), offsets[table + 1], BLOCK):
            count = min(BLOCK, offsets[table + 1] - begin)
            for i in range(count):
                home = _home(ids[begin + i], salt, mask)
                homes[i] = home
                prefetch(slots, uint64(2) * home)
            for i in range(count):
                at = _probe(slots, mask, homes[i], ids[begin + i], table)
                word = slots[uint64(2) * at + uint64(1)]
                if word == 0:
                    if progress[2] >= progress[3]:
                        progress[0] = begin + i
                        return
                    word = (table << ROW_BITS) | (_take_row(free, allocator) + 1)
                    slots[uint64(2) * at] = ids[begin + i]
                    slots[uint64(2) * at + uint64(1)] = word
                    fresh[progress[1]] = begin + i
                    progress[1] += 1
                    progress[2] += 1
                rows[begin + i] = (word & _ROW_MASK) - 1
    progress[0] = ids.size


@jit
def rehash(old, new):
    """Copies every key of `old` into the empty, larger `new`; a doubling reads and writes almost in order."""
    mask = uint64(new.size // 2 - 1)
    for source in range(old.size // 2):
        word = old[2 * source + 1]
        if word != 0:
            table = word >> ROW_BITS
            at = _probe(new, mask, _home(old[2 * source], _salt(table), mask), old[2 * source], table)
            new[uint64(2) * at] = old[2 * source]
            new[uint64(2) * at + uint64(1)] = word


@inlined
def _close_gap(slots, mask, hole):
    """Backward-shift deletion: moves later members of the run into the hole, so that no tombstone is needed.

    An entry may move to the hole only if its home does not lie cyclically in (hole, entry].
    """
    at = hole
    while True:
        at = (at + uint64(1)) & mask
        word = slots[uint64(2) * at + uint64(1)]
        if word == 0:
            break
        home = _home(slots[uint64(2) * at], _salt(word >> ROW_BITS), mask)
        if ((at - home) & mask) >= ((at - hole) & mask):
            slots[uint64(2) * hole] = slots[uint64(2) * at]
            slots[uint64(2) * hole + uint64(1)] = word
            hole = at
    slots[uint64(2) * hole] = 0
    slots[uint64(2) * hole + uint64(1)] = 0


@jit
def remove(slots, ids, offsets, rows):
    """Removes the keys; rows [U] gets the row each one had, or −1. Returns how many were there."""
    mask = uint64(slots.size // 2 - 1)
    removed = 0
    for table in range(offsets.size - 1):
        for i in range(offsets[table], offsets[table + 1]):
            at = _probe(slots, mask, _home(ids[i], _salt(table), mask), ids[i], table)
            rows[i] = (slots[uint64(2) * at + uint64(1)] & _ROW_MASK) - 1
            if rows[i] >= 0:
                _close_gap(slots, mask, at)
                removed += 1
    return removed


@jit
def entries(slots, table, ids, rows):
    """The ids and rows of one table, in slot order, as far as they fit; returns how many there are in all."""
    count = 0
    for at in range(slots.size // 2):
        word = slots[2 * at + 1]
        if word != 0 and (word >> ROW_BITS) == table:
            if count < ids.size:
                ids[count] = slots[2 * at]
                rows[count] = (word & _ROW_MASK) - 1
            count += 1
    return count


@inlined
def _place(scratch, mask, home, key, stamp):
    """The slot that holds the id under this stamp, or the first slot of its run that the stamp has not written."""
    at = home
    while True:
        word = scratch[uint64(2) * at + uint64(1)]
        if (word >> 32) != stamp or scratch[uint64(2) * at] == key:
            return at
        at = (at + uint64(1)) & mask


@jit
def deduplicate(ids, segments, tables, scratch, stamp, unique, unique_offsets, inverse):
    """Unique ids of each table in order of first appearance, and the place of every id in the unique list.

    Args:
        ids: [n] int64.
        segments: [S, 3] int64, a segment a row: its first element in `ids`, its end, and where its elements go in
            `inverse`; rows sorted by table (stable).
        tables: [T+1] int64, the runs of the tables in `segments`.
        scratch: [2·capacity] int64, `(id, stamp << 32 | position)` a slot; capacity a power of two, at least twice the
            ids of the largest table. Slots of an older stamp count as empty, so nothing is ever cleared.
        stamp: the last stamp used; T more are used here.
        unique, unique_offsets, inverse: [n], [T+1], [n] int64, the results.
    """
    homes = np.empty(BLOCK, np.uint64)
    count = 0
    for table in range(tables.size - 1):
        unique_offsets[table] = count
        stamp += 1
        total = 0
        for s in range(tables[table], tables[table + 1]):
            total += segments[s, 1] - segments[s, 0]
        capacity = 16  # a small table uses the first slots only: they stay in the cache
        while capacity < 2 * total:
            capacity *= 2
        mask = uint64(capacity - 1)
        for s in range(tables[table], tables[table + 1]):
            shift = segments[s, 2] - segments[s, 0]
            for begin in range(segments[s, 0], segments[s, 1], BLOCK):
                size = min(BLOCK, segments[s, 1] - begin)
                for i in range(size):
                    home = _home(ids[begin + i], uint64(0), mask)
                    homes[i] = home
                    prefetch(scratch, uint64(2) * home)
                for i in range(size):
                    key = ids[begin + i]
                    at = _place(scratch, mask, homes[i], key, stamp)
                    word = scratch[uint64(2) * at + uint64(1)]
                    if (word >> 32) != stamp:
                        word = (stamp << 32) | count
                        scratch[uint64(2) * at] = key
                        scratch[uint64(2) * at + uint64(1)] = word
                        unique[count] = key
                        count += 1
                    inverse[begin + i + shift] = word & 0xFFFFFFFF
    unique_offsets[tables.size - 1] = count
    return count


@jit
def mark_rows(slots, marks):
    """marks[row] = True for the row of every key; rows from marks.size on are passed by."""
    for at in range(slots.size // 2):
        row = (slots[2 * at + 1] & _ROW_MASK) - 1
        if 0 <= row < marks.size:
            marks[row] = True


@jit
def flagged(slots, flags, ids, tables, rows):
    """The id, table and row of every key whose row is flagged, in slot order, as far as they fit; returns how many."""
    count = 0
    for at in range(slots.size // 2):
        word = slots[2 * at + 1]
        row = (word & _ROW_MASK) - 1
        if 0 <= row < flags.size and flags[row]:
            if count < ids.size:
                ids[count], tables[count], rows[count] = slots[2 * at], word >> ROW_BITS, row
            count += 1
    return count
