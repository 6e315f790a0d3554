"""Numba kernels that read comma-separated integers, and sort and count what was read: one pass over the bytes each.

A kernel vouches only for lines that are regular beyond doubt; every other line it names, and the line reader decides.
All are single-threaded and release the GIL.
"""

from __future__ import annotations

import numpy as np

from nestlab.jit import jit

_DIGIT_BITS = 11
_COMMA, _NEWLINE, _MINUS, _ZERO = 44, 10, 45, 48


@jit
def integer_lines(text, flag_bit, values, flags, odd):
    """Reads lines of integers. Returns (lines, odd lines).

    Regular: every field is `-?[0-9]{1,18}`, or [01] where it is a flag; the fields are as many as `flag_bit` has.

    Args:
        text: [n] uint8, lines that each end in a newline.
        flag_bit: [F] int64: the bit of a field that is a flag, −1 for another one.
        values: [fields that are no flags, L] int64, flags: [L] uint16: what was read, line by line.
        odd: [L, 3] int64: of each line that is not regular its number, its first byte and that of its newline.
    """
    at, line, odds = 0, 0, 0
    fields, n = len(flag_bit), len(text)
    while at < n:
        start, good, bits, column = at, True, 0, 0
        for f in range(fields):
            negative = text[at] == _MINUS
            if negative:
                at += 1
            first, value = at, np.int64(0)
            while True:
                digit = np.int64(text[at]) - _ZERO
                if digit < 0 or digit > 9:
                    break
                value = value * 10 + digit
                at += 1
            digits = at - first
            end = _NEWLINE if f == fields - 1 else _COMMA
            if digits == 0 or digits > 18 or text[at] != end:
                good = False
                break
            if flag_bit[f] >= 0:
                if negative or digits != 1 or value > 1:
                    good = False
                    break
                bits |= value << flag_bit[f]
            else:
                values[column, line] = -value if negative else value
                column += 1
            at += 1
        if good:
            flags[line] = bits
        else:
            while text[at] != _NEWLINE:
                at += 1
            odd[odds, 0], odd[odds, 1], odd[odds, 2] = line, start, at
            odds += 1
            at += 1
        line += 1
    return line, odds


@jit
def radix_order(keys, low, bits):
    """The stable ascending order [n] int64 of `keys` [n] int64, none below `low` or above low + 2^bits − 1.

    Least significant digit first, as in Knuth, The Art of Computer Programming 3, section 5.2.5.
    """
    n = len(keys)
    order, other = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        order[i] = i
    counts = np.empty(1 << _DIGIT_BITS, np.int64)
    mask = (1 << _DIGIT_BITS) - 1
    for shift in range(0, bits, _DIGIT_BITS):
        counts[:] = 0
        for i in range(n):
            counts[((keys[i] - low) >> shift) & mask] += 1
        total = 0
        for d in range(len(counts)):
            counts[d], total = total, total + counts[d]
        for i in range(n):
            row = order[i]
            digit = ((keys[row] - low) >> shift) & mask
            other[counts[digit]] = row
            counts[digit] += 1
        order, other = other, order
    return order


@jit
def count_up(index, following, seen):
    """Gives each occurrence of an index its number among those so far: `seen` [n] int64.

    `following` [U] int64 holds the number of the next occurrence, and is moved on.
    """
    for i in range(len(index)):
        u = index[i]
        seen[i] = following[u]
        following[u] += 1
