"""Numba kernel that reads slots: weights out of scattered records, through composed positions."""

from __future__ import annotations

from numba import uint64

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import jit

AHEAD = 12  # rows asked for ahead of their turn; from 8 to 32 the same within the noise
_LINE = 64  # bytes


@jit
def gather(records, width, places, positions, weights, dim):
    """weights[i] = the first `dim` elements of record places[positions[i]]: a copy, bit by bit.

    Args:
        records: [slots · width] float32 or float64, one record behind the other.
        places: [U] int64 slots, all of them inside `records`.
        positions: [n] int64 into `places`.
        weights: [n · dim], the result, of the records' dtype.

    Returns:
        the number of positions outside `places`; unless it is 0, nothing was read or written.
    """
    outside = 0
    for i in range(positions.size):
        outside += positions[i] < 0 or positions[i] >= places.size
    if outside:
        return outside
    step = _LINE // records.itemsize
    for i in range(positions.size):
        if i + AHEAD < positions.size:
            begin = places[positions[i + AHEAD]] * width
            for at in range(begin, begin + dim, step):
                prefetch(records, at)
        source, target = uint64(places[positions[i]]) * uint64(width), uint64(i) * uint64(dim)
        for d in range(uint64(dim)):  # unsigned: no test for negative indices, so that it becomes vector moves
            weights[target + d] = records[source + d]
    return 0
