"""Numba kernels of clustering: growing parts by overlap, and exchanging samples between them.

Single-threaded, without the GIL: they run in the load stage beside the compute of earlier batches. They call each
other, so they share this module.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.jit import inlined, jit

_ABSENT = -2  # of a list link: this sample is in no list


@jit
def by_sample(lengths, offsets, keys):
    """Keys [nnz], feature by feature as lengths [F, B] cuts them, put sample by sample: offsets [B+1]."""
    out, at, place = np.empty(keys.size, np.int64), offsets[:-1].copy(), 0
    for f in range(lengths.shape[0]):
        for s in range(lengths.shape[1]):
            for _ in range(lengths[f, s]):
                out[at[s]] = keys[place]
                at[s] += 1
                place += 1
    return out


@jit
def thin(offsets, keys, unique, least, most):
    """The samples' keys without those that occur fewer than `least` or more than `most` times, renumbered.

    Returns:
        offsets [B+1], keys, and how many distinct ones are left.
    """
    number, count = np.zeros(unique, np.int64), 0
    for k in keys:
        number[k] += 1
    for k in range(unique):
        if least <= number[k] <= most:
            number[k] = count
            count += 1
        else:
            number[k] = -1
    left, starts, place = np.empty(keys.size, np.int64), np.zeros(offsets.size, np.int64), 0
    for s in range(offsets.size - 1):
        for j in range(offsets[s], offsets[s + 1]):
            if number[keys[j]] >= 0:
                left[place] = number[keys[j]]
                place += 1
        starts[s + 1] = place
    return starts, left[:place].copy(), count


@jit
def by_key(offsets, keys, unique):
    """The samples of each key: offsets [U+1] and samples [nnz], ascending; a sample stands as often as it has it."""
    starts = np.zeros(unique + 1, np.int64)
    for k in keys:
        starts[k + 1] += 1
    for k in range(unique):
        starts[k + 1] += starts[k]
    at, samples = starts[:-1].copy(), np.empty(keys.size, np.int64)
    for s in range(offsets.size - 1):
        for j in range(offsets[s], offsets[s + 1]):
            samples[at[keys[j]]] = s
            at[keys[j]] += 1
    return starts, samples


@jit
def cost(offsets, keys, order, bounds, unique):
    """Σ|∪K(s)| over parts bounds[i] … bounds[i + 1] − 1 of the samples in `order`."""
    seen, total = np.zeros(unique, np.int64), 0
    for part in range(bounds.size - 1):
        for place in range(bounds[part], bounds[part + 1]):
            for j in range(offsets[order[place]], offsets[order[place] + 1]):
                if seen[keys[j]] != part + 1:
                    seen[keys[j]] = part + 1
                    total += 1
    return total


@jit
def by_frequency(offsets, keys, starts):
    """[B] samples by the sum of their keys' frequencies, the highest first; equal ones in order."""
    score = np.zeros(offsets.size - 1, np.int64)
    for s in range(score.size):
        for j in range(offsets[s], offsets[s + 1]):
            score[s] -= starts[keys[j] + 1] - starts[keys[j]]
    return np.argsort(score, kind="mergesort")


@inlined
def _take_out(first, last, before, after, s, n):
    """Sample s leaves list n."""
    if before[s] >= 0:
        after[before[s]] = after[s]
    else:
        first[n] = after[s]
    if after[s] >= 0:
        before[after[s]] = before[s]
    else:
        last[n] = before[s]


@inlined
def _put_in(first, last, before, after, s, n, newest_first):
    """Sample s enters list n, at the front or at the end."""
    if newest_first:
        before[s], after[s], ahead = -1, first[n], first[n]
        first[n] = s
        if ahead >= 0:
            before[ahead] = s
        else:
            last[n] = s
    else:
        before[s], after[s], behind = last[n], -1, last[n]
        last[n] = s
        if behind >= 0:
            after[behind] = s
        else:
            first[n] = s


@jit
def grow(offsets, keys, starts, samples, bounds, newest_first):
    """An order [B]: parts filled one after another, always by the sample that brings the fewest new keys.

    Among equals the one that came within reach last (`newest_first`: depth first, which finishes one neighbourhood) or
    first (breadth first). A part starts, or goes on where nothing is within reach, with the sample whose keys are the
    most frequent. `lacking[s]` counts the keys of s that the part lacks; samples within reach lie in one linked list a
    count, so that a step costs the uses of the keys it adds: O(parts · nnz) in all.
    """
    size, unique = offsets.size - 1, starts.size - 1
    widest = 0
    for s in range(size):
        widest = max(widest, offsets[s + 1] - offsets[s])
    order, seeds, seed = np.empty(size, np.int64), by_frequency(offsets, keys, starts), 0
    taken, held = np.zeros(size, np.bool_), np.zeros(unique, np.int64)
    lacking, before, after = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    first, last = np.empty(widest + 1, np.int64), np.empty(widest + 1, np.int64)
    for part in range(bounds.size - 1):
        first[:], last[:], after[:] = -1, -1, _ABSENT
        for s in range(size):
            lacking[s] = offsets[s + 1] - offsets[s]
        lowest = widest  # no list below it holds a sample
        for place in range(bounds[part], bounds[part + 1]):
            while lowest < widest and first[lowest] < 0:
                lowest += 1
            if first[lowest] >= 0:
                s = first[lowest]
                _take_out(first, last, before, after, s, lowest)
            else:
                while taken[seeds[seed]]:
                    seed += 1
                s = seeds[seed]
            taken[s], order[place] = True, s
            for j in range(offsets[s], offsets[s + 1]):
                k = keys[j]
                if held[k] == part + 1:
                    continue
                held[k] = part + 1
                for m in range(starts[k], starts[k + 1]):
                    t = samples[m]
                    if not taken[t]:
                        if after[t] != _ABSENT:
                            _take_out(first, last, before, after, t, lacking[t])
                        lacking[t] -= 1
                        _put_in(first, last, before, after, t, lacking[t], newest_first)
                        lowest = min(lowest, lacking[t])
    return order


@inlined
def _below(state, bound):
    """The next pseudo-random number 0 … bound − 1, bound < 2^31 (xorshift64: Marsaglia 2003)."""
    x = state[0]
    x ^= x << uint64(13)
    x ^= x >> uint64(7)
    x ^= x << uint64(17)
    state[0] = x
    return (np.int64(x >> uint64(32)) * bound) >> 32


@inlined
def _move(uses, keys, begin, end, source, target):
    """Moves a sample's keys between parts in uses [U, parts]; returns how much the cost grows."""
    grown = 0
    for j in range(begin, end):
        row = uses[keys[j]]
        row[source] -= 1
        grown -= row[source] == 0
        grown += row[target] == 0
        row[target] += 1
    return grown


@jit
def exchange(offsets, keys, starts, samples, bounds, order, proposals, touches):
    """Exchanges two samples of different parts wherever that does not cost more; changes `order` [B].

    In the manner of Kernighan and Lin, with random proposals in place of a queue of gains: a sample, one of its keys,
    the part of another sample that has this key, and any sample there. Exchanges that change nothing are made too: they
    lead on from plateaus. The seed is fixed, so the result is a function of the arguments.

    Args:
        proposals, touches: bounds of the work: exchanges tried, and keys counted in them.
    """
    size, parts = order.size, bounds.size - 1
    place, part = np.empty(size, np.int64), np.empty(size, np.int64)  # of a sample; of a place
    uses = np.zeros((starts.size - 1, parts), np.int32)
    for i in range(parts):
        for p in range(bounds[i], bounds[i + 1]):
            part[p], place[order[p]] = i, p
            for j in range(offsets[order[p]], offsets[order[p] + 1]):
                uses[keys[j], i] += 1
    state = np.full(1, 0x9E3779B97F4A7C15, np.uint64)
    for _ in range(proposals):
        s = _below(state, size)
        begin, count = offsets[s], offsets[s + 1] - offsets[s]
        if count == 0:
            continue
        k = keys[begin + _below(state, count)]
        other = samples[starts[k] + _below(state, starts[k + 1] - starts[k])]
        p, target = place[s], part[place[other]]
        source = part[p]
        if source == target:
            continue
        q = bounds[target] + _below(state, bounds[target + 1] - bounds[target])
        t = order[q]
        grown = _move(uses, keys, begin, begin + count, source, target)
        grown += _move(uses, keys, offsets[t], offsets[t + 1], target, source)
        touches -= count + offsets[t + 1] - offsets[t]
        if grown <= 0:
            order[p], order[q], place[s], place[t] = t, s, q, p
        else:
            _move(uses, keys, offsets[t], offsets[t + 1], source, target)
            _move(uses, keys, begin, begin + count, target, source)
        if touches <= 0:
            break
