"""Numba kernels of the swap planner: which slot a row has, which slots are touched, which are taken.

Row → slot is an array indexed by row, so that a planned key costs one hash probe (key → row) and no second one. The
arrays lie in DRAM or in a shared cache: a block of rows is prefetched before it is read, as in `kernels`.

Lists of slots are doubly linked and circular, with their sentinels first: list c has node c, slot s has node
`heads + s`; `links[node]` is (previous, next). A touch moves a slot to the end of its list, so that every list is
ordered by last use and a list is left at its first slot that may not be taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import inlined, jit

BLOCK = 32  # rows prefetched, then read
AHEAD = 64  # how far `touch` asks ahead, once for the row and once for its slot: a rolling window, not blocks
VOID = 0  # the list of slots whose row was forgotten
NEVER = -2  # last use of a slot that no plan has used; below every plan's number by two


class Places(NamedTuple):
    """Which row is in which slot.

    Attributes:
        slot_of: [rows] int32: slot + 1 of a row, 0 for none.
        row_of: [slots] int64: −1 for none.
        last_used: [slots] int32: number of the newest plan with the slot; NEVER before the first.
        state: [3] int64: slots ever filled (the next one to fill), end of the slots in force, clock hand.
    """

    slot_of: np.ndarray
    row_of: np.ndarray
    last_used: np.ndarray
    state: np.ndarray


class Swaps(NamedTuple):
    """Results of a fill: int64 arrays of the number of misses; the second and third are filled in front only."""

    in_slots: np.ndarray
    out_rows: np.ndarray
    out_slots: np.ndarray


@jit
def find_slots(rows, places, slots):
    """Writes to slots [U] int64 the slot of each row, −1 for none and for a row of −1."""
    slot_of = places.slot_of
    for begin in range(0, rows.size, BLOCK):
        end = min(begin + BLOCK, rows.size)
        for i in range(begin, end):
            prefetch(slot_of, rows[i])
        for i in range(begin, end):
            slots[i] = slot_of[rows[i]] - 1 if rows[i] >= 0 else -1


@jit
def count_new(rows, places, since):
    """How many of `rows` take a slot that no plan from number `since` on has used."""
    slot_of, last_used, count = places.slot_of, places.last_used, 0
    for i in range(rows.size):
        if rows[i] >= 0:
            slot = slot_of[rows[i]] - 1
            if slot < 0 or last_used[slot] < since:
                count += 1
    return count


@jit
def touch(rows, places, now, slots, misses):
    """As `find_slots`; marks the slots as used by plan `now`. Positions of the others go to `misses`.

    Returns:
        how many rows missed, and how many are −1.
    """
    slot_of, last_used = places.slot_of, places.last_used
    missed, refused = 0, 0
    for i in range(min(AHEAD, rows.size)):
        prefetch(slot_of, rows[i])
    for i in range(rows.size + AHEAD):
        if i + AHEAD < rows.size:
            prefetch(slot_of, rows[i + AHEAD])
        if i < rows.size:
            slots[i] = slot_of[rows[i]] - 1 if rows[i] >= 0 else -1
            prefetch(last_used, slots[i])
        at = i - AHEAD
        if at < 0:
            continue
        if slots[at] >= 0:
            last_used[slots[at]] = now
        elif rows[at] >= 0:
            misses[missed] = at
            missed += 1
        else:
            refused += 1
    return missed, refused


@inlined
def _settle(row, slot, slot_of, row_of, out_rows, out_slots, out):
    """Gives the slot to the row; a row that it is taken from joins the swap-outs. Returns their new number."""
    old = row_of[slot]
    if old >= 0:
        slot_of[old] = 0
        out_rows[out] = old
        out_slots[out] = slot
        out += 1
    row_of[slot] = row
    slot_of[row] = slot + 1
    return out


@jit
def fill_by_clock(rows, misses, places, now, swaps, first):
    """Slots for the misses as RecSDK's SwapManager: first in order, then by a sweep that wraps at the end.

    The sweep takes the next slot with a last use before plan now − 1. That there are enough has been checked. A slot is
    this plan's as soon as it is chosen; who has it is written some misses later, when that memory has been fetched.
    Arrays are taken out of their tuples first: numba counts references to an array that it takes out within the loop,
    which took four times as long (370 µs for 5,000 misses among 1 million slots).

    Returns:
        how many rows leave.
    """
    slot_of, row_of, last_used, state = places
    in_slots, out_rows, out_slots = swaps
    out, next_slot, end, hand = 0, state[0], state[1], state[2]
    for j in range(misses.size + BLOCK):
        if j < misses.size:
            if next_slot < end:
                slot = next_slot
                next_slot += 1
            else:
                while hand >= end or last_used[hand] >= now - 1:
                    hand = hand + 1 if hand < end else first
                slot = hand
                hand += 1
            in_slots[j] = slot
            last_used[slot] = now
            prefetch(slot_of, row_of[slot])
            prefetch(slot_of, rows[misses[j]])
        if j >= BLOCK:
            out = _settle(rows[misses[j - BLOCK]], in_slots[j - BLOCK], slot_of, row_of, out_rows, out_slots, out)
    state[0], state[2] = next_slot, hand
    return out


@inlined
def _unlink(links, node):
    before, after = links[node, 0], links[node, 1]
    links[before, 1] = after
    links[after, 0] = before


@inlined
def _append(links, head, node):
    last = links[head, 0]
    links[last, 1] = node
    links[node, 0] = last
    links[node, 1] = head
    links[head, 0] = node


@jit
def move(slots, classes, links, heads):
    """Moves each slot ≥ 0 to the end of list `classes[i]`, in order."""
    flat = links.reshape(-1)
    for i in range(slots.size + BLOCK):
        if i < slots.size:
            prefetch(flat, 2 * (heads + slots[i]))
        near = i - BLOCK // 2  # its own node is here: ask for its neighbours
        if near >= 0 and near < slots.size and slots[near] >= 0:
            prefetch(flat, 2 * links[heads + slots[near], 0])
            prefetch(flat, 2 * links[heads + slots[near], 1])
        at = i - BLOCK
        if at >= 0 and slots[at] >= 0:
            _unlink(links, heads + slots[at])
            _append(links, classes[at], heads + slots[at])


@jit
def fill_by_lists(rows, misses, classes, places, now, swaps, links, order):
    """Slots for the misses: unused ones first, then the front of the lists in the given `order`.

    Only slots with a last use before plan now − 1 are taken. In the list VOID, which is not ordered by last use, others
    are passed over; any other list is left at the first of them. A taken slot goes to the end of the miss's list.

    Args:
        classes: [U] int32, the list of each row of the batch.
        order: [≤ heads] int32, the lists in the order in which they are searched.

    Returns:
        how many rows leave; −1 if the lists were too few, which a broken order alone can cause.
    """
    slot_of, row_of, last_used, state = places
    in_slots, out_rows, out_slots = swaps
    heads, out, next_slot, end = links.shape[0] - row_of.size, 0, state[0], state[1]
    at, node = 0, links[order[0], 1]
    for j in range(misses.size + BLOCK):
        if j < misses.size:
            if next_slot < end:
                slot = next_slot
                next_slot += 1
            else:
                while node < heads or last_used[node - heads] >= now - 1:
                    if node >= heads and order[at] == VOID:
                        node = links[node, 1]
                        continue
                    at += 1
                    if at == order.size:
                        return -1
                    node = links[order[at], 1]
                slot = node - heads
                node = links[node, 1]
                _unlink(links, heads + slot)
            _append(links, classes[misses[j]], heads + slot)
            in_slots[j] = slot
            last_used[slot] = now
            prefetch(slot_of, row_of[slot])
            prefetch(slot_of, rows[misses[j]])
        if j >= BLOCK:
            out = _settle(rows[misses[j - BLOCK]], in_slots[j - BLOCK], slot_of, row_of, out_rows, out_slots, out)
    state[0] = next_slot
    return out


@jit
def forget(rows, places, links, heads):
    """Drops the rows [n]; their slots become void and join list VOID (no list where `heads` is 0).

    The last use stays: a batch in flight may still use the slot. Returns how many of the rows had one.
    """
    slot_of, row_of, count = places.slot_of, places.row_of, 0
    for i in range(rows.size):
        if rows[i] >= 0 and slot_of[rows[i]] > 0:
            slot = slot_of[rows[i]] - 1
            slot_of[rows[i]] = 0
            row_of[slot] = -1
            if heads > 0:
                _unlink(links, heads + slot)
                _append(links, VOID, heads + slot)
            count += 1
    return count


@jit
def count_uses(rows, uses, classes):
    """Counts each row ≥ 0 once more in uses [rows] uint8, which stays at 255; writes 1 + the count to classes [U]."""
    for begin in range(0, rows.size, BLOCK):
        end = min(begin + BLOCK, rows.size)
        for i in range(begin, end):
            prefetch(uses, rows[i])
        for i in range(begin, end):
            if rows[i] >= 0:
                if uses[rows[i]] < 255:
                    uses[rows[i]] += 1
                classes[i] = uses[rows[i]]
