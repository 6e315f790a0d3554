"""Numba kernels that sort the rows of a look-up and find what they share: unique rows and, level by level, prefixes.

A sort by least significant digit first (Knuth, volume 3, 5.2.5) of words `row << bits | position`: stable, and a pass
moves one word an index. All kernels run on one thread and release the GIL.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.jit import jit

DIGIT = 12  # bits a pass at most: 4,096 counters and their cache lines stay in L2; 2 passes for up to 16 million rows


@jit
def pack(rows, bits, words):
    """words [n] uint64, written: row << bits | position. Returns the smallest row and the largest, or 0 and −1."""
    smallest, largest = np.int64(0), np.int64(-1)
    for i in range(rows.size):
        smallest, largest = min(smallest, rows[i]), max(largest, rows[i])
        words[i] = (uint64(rows[i]) << uint64(bits)) | uint64(i)
    return smallest, largest


@jit
def sort_words(words, spare, low, digit, passes):
    """Sorts words [n] by `passes` digits of `digit` bits from bit `low` on; in `spare` at the end if passes is odd."""
    size = 1 << digit
    mask = uint64(size - 1)
    counts = np.zeros((passes, size), np.int32)
    for i in range(words.size):
        for p in range(passes):
            counts[p, (words[i] >> uint64(low + p * digit)) & mask] += 1
    source, target = words, spare
    for p in range(passes):
        shift, count, total = uint64(low + p * digit), counts[p], np.int32(0)
        for d in range(size):
            count[d], total = total, total + count[d]
        for i in range(source.size):
            word = source[i]
            d = (word >> shift) & mask
            target[count[d]] = word
            count[d] += 1
        source, target = target, source


@jit
def bags_of(offsets, bags):
    """bags [nnz] int32, written: the bag of each position. Returns the length of the longest; −1: no such offsets."""
    longest, at = np.int64(0), np.int64(0)
    for b in range(offsets.size - 1):
        if offsets[b] != at or offsets[b + 1] < at or offsets[b + 1] > bags.size:
            return np.int64(-1)
        at = offsets[b + 1]
        longest = max(longest, at - offsets[b])
        for i in range(offsets[b], offsets[b + 1]):
            bags[i] = b
    return longest if at == bags.size else np.int64(-1)


@jit
def unpack(words, bits, bags, order, bag):
    """order [n], bag [n] int32: the position and the bag of each sorted word."""
    mask = uint64((1 << bits) - 1)
    for i in range(words.size):
        at = np.int64(words[i] & mask)
        order[i] = at
        bag[i] = bags[at]


@jit
def scan(words, bits, factors, order, inverse, parents, digits, starts, counts):
    """Unique rows and prefixes of sorted rows.

    Args:
        words: [n] uint64, row << bits | anything, sorted.
        factors: [d] int64, p_1 … p_d.
        order: [n] int32, where each came from.
        inverse: [n] int32, written: the unique row of each position.
        parents, digits, starts: [d − 1, n] and [d − 1, n + 1] int32, written; level k holds prefixes of k + 2 digits,
            the last one rows. The parent of level 0 is the first digit, of level k an item of level k − 1; starts
            are the first child of each item in the next level (of a row: in the sorted indices), and the end.
        counts: [d − 1] int64, zeros; written: items of each level.
    """
    last = factors.size - 2
    ends = np.full(last + 1, np.int64(-1))  # values of a level from here on have another parent
    bases = np.zeros(last + 1, np.int64)
    before = np.int64(-1)
    fresh = np.empty(last + 1, np.int64)  # values of the levels that begin at this row
    for i in range(words.size):
        value = np.int64(words[i] >> uint64(bits))
        if value != before:
            before = value
            top = last
            fresh[last] = value
            while top > 0 and value >= ends[top]:
                value //= factors[top + 1]
                bases[top] = value * factors[top + 1]
                ends[top] = bases[top] + factors[top + 1]
                top -= 1
                fresh[top] = value
            if top == 0 and value >= ends[0]:
                bases[0] = value // factors[1] * factors[1]
                ends[0] = bases[0] + factors[1]
            for k in range(top, last + 1):
                at = counts[k]
                counts[k] += 1
                digits[k, at] = fresh[k] - bases[k]
                parents[k, at] = counts[k - 1] - 1 if k > 0 else bases[0] // factors[1]
                starts[k, at] = counts[k + 1] if k < last else i
        inverse[order[i]] = counts[last] - 1
    for k in range(last):
        starts[k, counts[k]] = counts[k + 1]
    starts[last, counts[last]] = words.size


@jit
def group(digits, starts, groups, order, offsets):
    """Prefixes by their last digit: a stable counting sort.

    Args:
        digits: [n] int32 in [0, p).
        starts: [n + 1] int32, the first row of each prefix.
        groups: [p + 1] int64, written: where the prefixes of each digit begin, and the end.
        order: [n] int32, written: the prefixes, sorted.
        offsets: [n + 1] int32, written: rows of the prefixes before each one of `order`.
    """
    groups[:] = 0
    for i in range(digits.size):
        groups[digits[i] + 1] += 1
    for d in range(groups.size - 1):
        groups[d + 1] += groups[d]
    place = groups[:-1].copy()
    for i in range(digits.size):
        order[place[digits[i]]] = i
        place[digits[i]] += 1
    offsets[0] = 0
    for i in range(order.size):
        offsets[i + 1] = offsets[i] + starts[order[i] + 1] - starts[order[i]]


@jit
def share(offsets, first, end, prefix_cost, row_cost, ends):
    """ends [parts + 1] int64, written: prefixes of the order, from `first` to `end`, in parts of about equal cost."""
    parts, rows = ends.size - 1, np.int64(offsets[first])
    total = (end - first) * prefix_cost + (np.int64(offsets[end]) - rows) * row_cost
    ends[0] = first
    for part in range(1, parts):
        low, high = ends[part - 1], end
        while low < high:
            middle = (low + high) // 2
            cost = (middle - first) * prefix_cost + (np.int64(offsets[middle]) - rows) * row_cost
            if cost * parts < total * part:
                low = middle + 1
            else:
                high = middle
        ends[part] = low
    ends[parts] = end
