"""Numba kernels over rows on their way: sums at the owner, and rows of 8-bit numbers with a scale each.

All are single-threaded and release the GIL; the order of every sum is fixed.
"""

from __future__ import annotations

import numpy as np

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import jit

AHEAD = 4  # rows prefetched ahead
_LINE = 64  # bytes of a cache line


@jit
def add_rows(into, places, rows):
    """into[places[i]] += rows[i], in order; into [U, dim], rows [n, dim] of one dtype, places [n] int64, repeated."""
    flat, dim, line = into.reshape(-1), into.shape[1], _LINE // into.itemsize
    for i in range(places.size):
        if i + AHEAD < places.size:
            start = places[i + AHEAD] * dim
            for column in range(0, dim, line):
                prefetch(flat, start + column)
        target, row = into[places[i]], rows[i]
        for c in range(dim):
            target[c] += row[c]


@jit
def find_peaks(bits, without_sign, peaks):
    """peaks [n] = the bits of the largest |x| of each row.

    Among numbers without their sign the order of the bits, read as integers, is that of the values, with inf above all
    numbers and nan above inf; and a search among integers vectorises without a licence to reorder.

    Args:
        bits: [n, dim] int32 or int64, the memory of float32 or float64 rows; peaks: of the same type.
        without_sign: all bits but the first, of that type.
    """
    for i in range(bits.shape[0]):
        row, peak = bits[i], bits.dtype.type(0)
        for c in range(row.size):
            magnitude = bits.dtype.type(row[c] & without_sign)
            peak = magnitude if magnitude > peak else peak
        peaks[i] = peak


@jit
def quantise(rows, scales, out):
    """out[i, c] = rows[i, c] / scales[i] to the nearest whole number, ties to even; 0 where the scale is 0 or nan.

    rows: [n, dim] float32 or float64; scales: [n] float32; out: [n, dim + 4] int8, whose last columns stay as they are.
    """
    for i in range(rows.shape[0]):
        row, numbers, scale = rows[i], out[i], rows.dtype.type(scales[i])
        if scale > 0:
            for c in range(row.size):
                numbers[c] = np.int8(np.rint(row[c] / scale))
        else:
            for c in range(row.size):
                numbers[c] = 0


@jit
def restore(numbers, scales, rows):
    """rows[i, c] = numbers[i, c] · scales[i]; shapes and dtypes as in `quantise`."""
    for i in range(rows.shape[0]):
        row, number, scale = rows[i], numbers[i], rows.dtype.type(scales[i])
        for c in range(row.size):
            row[c] = rows.dtype.type(number[c]) * scale
