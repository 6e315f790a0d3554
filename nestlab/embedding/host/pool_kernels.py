"""Numba kernels of the buffer pool: who lies in which frame, and whose frame is taken next.

`places` [rows] int32: 0 for a row without a record, −1 for one in the file, frame + 1 for one in memory. A frame:
`owners` [frames] int64, its row or −1; `pins` [frames] int32; `flags` [frames] uint8 of the bits below. `free` [frames]
int64 is the list of frames given back. `counts` int64 [4]: frames ever used, frames in that list, frames pinned, the
hand of the clock.
"""

from __future__ import annotations

import numpy as np
from numba import types

from nestlab.jit import jit

USED = 1  # since the hand passed by
CHANGED = 2  # newer than in the file
BELOW = 4  # the file has a record of it
LEAVING = 8  # chosen for a newcomer
EVER, FREE, PINNED, HAND = 0, 1, 2, 3  # places in `counts`

_IN_FILE = -1
_word = types.uintp
_memcpy = types.ExternalFunction("memcpy", _word(_word, _word, _word))
_memset = types.ExternalFunction("memset", _word(_word, types.int32, _word))


@jit
def demand(places, pins, rows):
    """Frames that pinning rows [n] takes beside the frames pinned now: for rows in memory, for others."""
    resident = missing = 0
    for i in range(rows.size):
        place = places[rows[i]]
        if place <= 0:
            missing += 1
        elif pins[place - 1] == 0:
            resident += 1
    return resident, missing


@jit
def pin_resident(places, pins, flags, counts, rows, read, frames, missing):
    """Pins those of rows [n] that are in memory, frames [n] gets where; the positions of others go to `missing`."""
    count = 0
    for i in range(rows.size):
        frame = places[rows[i]] - 1
        if frame < 0:
            missing[count] = i
            count += 1
            continue
        counts[PINNED] += pins[frame] == 0
        pins[frame] += 1
        flags[frame] |= USED if read[i] else USED | CHANGED
        frames[i] = frame
    return count


@jit
def choose(owners, pins, flags, free, counts, chosen):
    """Frames for newcomers [m]: given back ones, then never used ones, then victims of the clock's second chance.

    The hand passes pinned frames by, takes the mark from a used one, and takes a frame that had none. The caller knows
    that there are enough frames without a pin: two rounds find them.
    """
    for k in range(chosen.size):
        if counts[FREE] > 0:
            counts[FREE] -= 1
            frame = free[counts[FREE]]
        elif counts[EVER] < pins.size:
            frame = counts[EVER]
            owners[frame] = -1
            counts[EVER] += 1
        else:
            while True:
                frame = counts[HAND]
                counts[HAND] = frame + 1 if frame + 1 < pins.size else 0
                if pins[frame] > 0 or flags[frame] & LEAVING:
                    continue
                if not flags[frame] & USED:
                    break
                flags[frame] &= ~USED
        flags[frame] |= LEAVING
        chosen[k] = frame


@jit
def let_go(places, owners, flags, chosen):
    """Victims have left, what was newer than the file has landed there: their rows are below from now on."""
    for k in range(chosen.size):
        frame = chosen[k]
        if owners[frame] >= 0:
            places[owners[frame]] = _IN_FILE if flags[frame] & (CHANGED | BELOW) else 0
        owners[frame] = -1
        flags[frame] = 0


@jit
def move_in(places, owners, pins, flags, counts, rows, read, missing, chosen, frames):
    """Rows at the positions `missing` [m] lie in the frames `chosen` [m] from now on, each with one pin."""
    for k in range(chosen.size):
        i, frame = missing[k], chosen[k]
        flags[frame] = USED
        if places[rows[i]] == _IN_FILE:
            flags[frame] |= BELOW
        if not read[i]:
            flags[frame] |= CHANGED
        places[rows[i]] = frame + 1
        owners[frame] = rows[i]
        pins[frame] = 1
        frames[i] = frame
    counts[PINNED] += chosen.size


@jit
def unpin(pins, flags, counts, frames, changed):
    """Takes one pin from each of frames [n]; returns −1, or the first that has none, with nothing done."""
    for i in range(frames.size):
        if pins[frames[i]] <= 0:
            return frames[i]
    for i in range(frames.size):
        frame = frames[i]
        pins[frame] -= 1
        counts[PINNED] -= pins[frame] == 0
        if changed:
            flags[frame] |= CHANGED
    return -1


@jit
def give_back(owners, flags, free, counts, chosen):
    """Undoes `choose`: victims stay where they are, frames without a row go to the list."""
    for k in range(chosen.size):
        frame = chosen[k]
        flags[frame] &= ~LEAVING
        if owners[frame] < 0:
            free[counts[FREE]] = frame
            counts[FREE] += 1


@jit
def drop(places, owners, pins, flags, free, counts, rows):
    """Rows [n] have no record any more; returns −1, or the first that is pinned, with nothing done."""
    for i in range(rows.size):
        if places[rows[i]] > 0 and pins[places[rows[i]] - 1] > 0:
            return rows[i]
    for i in range(rows.size):
        frame = places[rows[i]] - 1
        places[rows[i]] = 0
        if frame >= 0:
            owners[frame] = -1
            flags[frame] = 0
            free[counts[FREE]] = frame
            counts[FREE] += 1
    return -1


@jit
def copy_resident(places, rows, size, memory, taken, target):
    """Copies the first `taken` of `size` bytes of the records of rows [n] that lie in memory, one after the other, to
    address `target`; zeros where a row has no record. Returns how many records are in the file instead.
    """
    below = 0
    for i in range(rows.size):
        place = places[rows[i]]
        if place > 0:
            _memcpy(target + i * taken, memory + (place - 1) * size, taken)
        elif place == 0:
            _memset(target + i * taken, 0, taken)
        else:
            below += 1
    return below


def warm_up() -> None:
    """Compiles (or loads from numba's cache) every kernel above, on next to nothing."""
    places, pins, flags, counts = (
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.zeros(1, np.uint8),
        np.zeros(4, np.int64),
    )
    row, frame, owners, free, none = *np.zeros((4, 1), np.int64), np.empty(0, np.int64)
    read = np.zeros(1, np.bool_)
    demand(places, pins, row)
    pin_resident(places, pins, flags, counts, none, read, frame, row)
    choose(owners, pins, flags, free, counts, frame)
    let_go(places, owners, flags, frame)
    move_in(places, owners, pins, flags, counts, row, read, row, frame, frame)
    unpin(pins, flags, counts, frame, True)
    drop(places, owners, pins, flags, free, counts, row)
    give_back(owners, flags, free, np.zeros(4, np.int64), frame)
    copy_resident(places, none, 8, row.ctypes.data, 8, row.ctypes.data)
