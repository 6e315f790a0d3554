"""Numba kernels of the access statistics: exact LRU stack distances, and keys that consecutive batches share."""

from __future__ import annotations

import numpy as np

from nestlab.jit import jit


@jit
def stack_histogram(codes, keys):
    """[keys + 1] int64: how many accesses have each LRU stack distance; the last entry: first ones, with none.

    The distance of an access is the number of distinct other keys since the last access of its key: a cache of C rows
    under LRU hits exactly those below C (Mattson, Gecsei, Slutz, Traiger 1970). A Fenwick tree over the accesses marks
    the newest of each key (Bennett and Kruskal 1975): n·log n steps, n words.

    Args:
        codes: [n] int64, the key of each access in their order, each in 0 … keys − 1.
    """
    n = codes.size
    tree = np.zeros(n + 1, np.int64)
    last = np.zeros(keys, np.int64)  # place of the newest access, from 1; 0: none yet
    histogram = np.zeros(keys + 1, np.int64)
    seen = 0
    for t in range(1, n + 1):
        code = codes[t - 1]
        before = last[code]
        if before == 0:
            histogram[keys] += 1
            seen += 1
        else:
            distance, place = seen, before
            while place > 0:
                distance -= tree[place]
                place &= place - 1
            histogram[distance] += 1
            place = before
            while place <= n:
                tree[place] -= 1
                place += place & -place
        place = t
        while place <= n:
            tree[place] += 1
            place += place & -place
        last[code] = t
    return histogram


@jit
def reuse(codes, ends, keys):
    """([batches], [batches]) int64: distinct keys of each batch, and how many of them the batch before has too.

    Args:
        codes: [n] int64, each in 0 … keys − 1, batch by batch.
        ends: [batches] int64, where each batch ends in `codes`.
    """
    newest = np.full(keys, -2, np.int64)  # batch in which a key was last seen; −2: before none
    unique, shared = np.zeros(ends.size, np.int64), np.zeros(ends.size, np.int64)
    begin = 0
    for b in range(ends.size):
        for i in range(begin, ends[b]):
            before = newest[codes[i]]
            if before != b:
                unique[b] += 1
                shared[b] += before == b - 1
                newest[codes[i]] = b
        begin = ends[b]
    return unique, shared
