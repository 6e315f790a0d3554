"""Numba kernels that lay out Arrow columns as a Batch: a value is read where it lies and written where it is wanted.

A column is given as Arrow holds it: `values` [n], `valid` (a bit a row, the lowest first; empty where nothing is
missing) and `first`, the bit of row 0. Single-threaded; all release the GIL.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import float32, int64

from nestlab.jit import jit

DENSE_TYPES = (np.int32, np.int64)


@jit
def gather_ids(values, valid, first, places, ids, at, lengths):
    """One feature of rows `places` [B]: its ids to ids[at:], 1 or 0 (missing) to lengths [B]; returns where they end.

    One element of `ids` beyond that end is written over: without a branch, missing values cost no wrong guess.
    """
    if valid.size == 0:
        for i in range(places.size):
            ids[at + i] = values[places[i]]
            lengths[i] = 1
        return at + places.size
    for i in range(places.size):
        bit = places[i] + first
        there = int64(valid[bit >> 3] >> (bit & 7)) & 1
        ids[at] = values[places[i]]
        lengths[i] = there
        at += there
    return at


@jit
def gather_dense(values, valid, first, places, dense):
    """One integer column of rows `places` [B] -> max(x, 0), missing 0, to dense [B] float32."""
    for i in range(places.size):
        bit = places[i] + first
        there = valid.size == 0 or (valid[bit >> 3] >> (bit & 7)) & 1
        dense[i] = max(float32(values[places[i]]), float32(0)) if there else float32(0)


@jit
def read_through(values):
    """Reads a column from front to back, a number a cache line: gathering finds it in the cache, or at least in memory.

    Returns a sum, so that the compiler cannot leave the reading out.
    """
    seen = int64(0)
    for i in range(0, values.size, 8):
        seen += values[i]
    return seen


@cache
def warm_up() -> None:
    """Compiles the kernels, or loads them from numba's cache, ahead of the first batch."""
    places, bits = np.zeros(1, np.int64), read_only(np.ones(1, np.uint8))
    for kind in DENSE_TYPES:
        values = read_only(np.zeros(1, kind))
        gather_dense(values, bits, 0, places, np.empty(1, np.float32))
        read_through(values)
    gather_ids(values, bits, 0, places, np.empty(2, np.int64), 0, places.copy())


def read_only(array: np.ndarray) -> np.ndarray:
    """The array, no longer to be written: to numba another type, and all columns have to be of one."""
    array.flags.writeable = False
    return array
