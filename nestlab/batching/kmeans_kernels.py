"""Numba kernels of K-means on key sets with balanced clusters."""

from __future__ import annotations

import numpy as np

from nestlab.jit import jit


@jit
def most_frequent(offsets, keys, frequency):
    """[B] int64: the key of each sample that is the most frequent in the batch, the first of equals; −1: it has none.

    frequency: [U] int64.
    """
    top = np.full(offsets.size - 1, -1, np.int64)
    for s in range(top.size):
        for j in range(offsets[s], offsets[s + 1]):
            if top[s] < 0 or frequency[keys[j]] > frequency[top[s]]:
                top[s] = keys[j]
    return top


@jit
def count_keys(offsets, keys, part, uses):
    """uses [U, parts] int32 = how often the samples of a part have a key; part [B] int64."""
    uses[:] = 0
    for s in range(part.size):
        for j in range(offsets[s], offsets[s + 1]):
            uses[keys[j], part[s]] += 1


@jit
def nearness(offsets, keys, uses, sizes, scores):
    """scores [B, parts] = 2·⟨x, c⟩ − |c|² with x a sample's keys and c the mean of a part's: |x|² − |x − c|²."""
    parts = sizes.size
    norm = np.zeros(parts)
    for k in range(uses.shape[0]):
        for i in range(parts):
            norm[i] += (uses[k, i] / sizes[i]) ** 2
    for s in range(scores.shape[0]):
        for i in range(parts):
            scores[s, i] = -norm[i]
        for j in range(offsets[s], offsets[s + 1]):
            for i in range(parts):
                scores[s, i] += 2.0 * uses[keys[j], i] / sizes[i]


@jit
def assign(scores, sizes, part):
    """part [B]: the nearest part with room, sizes [parts] samples each. Who would lose most by its second choice comes
    first; equal ones in order."""
    parts, size = sizes.size, part.size
    regret = np.empty(size)
    for s in range(size):
        best, second = -np.inf, -np.inf
        for i in range(parts):
            if scores[s, i] > best:
                best, second = scores[s, i], best
            elif scores[s, i] > second:
                second = scores[s, i]
        regret[s] = second - best
    room = sizes.copy()
    for s in np.argsort(regret, kind="mergesort"):
        chosen = -1
        for i in range(parts):
            if room[i] > 0 and (chosen < 0 or scores[s, i] > scores[s, chosen]):
                chosen = i
        part[s] = chosen
        room[chosen] -= 1
