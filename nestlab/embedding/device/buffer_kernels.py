"""Numba kernel of the dual buffer: which rows the batch before has too."""

from __future__ import annotations

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import jit

AHEAD = 32  # rows asked for ahead of their turn
POSITION_BITS = 32


@jit
def intersect(rows, places, number, shared, before, fetched):
    """Where each row of batch `number` ≥ 1 lies in the batch before, and in this one from now on.

    Args:
        rows: [U] int64, no row twice; −1 for a key without one, which is passed by.
        places: [rows] int64: number of the newest batch with the row << 32 | its position there; 0 for none.
        shared, before: [U] int64: positions here and in batch number − 1 of the rows in both.
        fetched: [U] int64: positions of the others.

    Returns:
        how many are shared, and how many are not.
    """
    both, only = 0, 0
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(places, rows[i + AHEAD])
        row = rows[i]
        if row < 0:
            continue
        word = places[row]
        if word >> POSITION_BITS == number - 1 and word != 0:
            shared[both] = i
            before[both] = word & 0xFFFFFFFF
            both += 1
        else:
            fetched[only] = i
            only += 1
        places[row] = (number << POSITION_BITS) | i
    return both, only
