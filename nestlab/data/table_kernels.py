"""The numba kernel that reads a feature table's lines: numbers, dates, words and quoted lists of words, in one pass.

It stops at whatever it does not vouch for (a line of another shape, a word that it has not met), so that the caller
can decide and let it go on from there. Single-threaded, releases the GIL.
"""

from __future__ import annotations

import numpy as np

from nestlab.jit import jit

KEY, NUMBER, WORD, DATE, WORDS = range(5)
DONE, ODD, UNKNOWN = range(3)
# Places of the reader's state: next byte, rows written, values of lists written; what it stopped at: from byte to byte.
AT, ROW, LISTED, START, STOP = range(5)

_COMMA, _NEWLINE, _MINUS, _POINT, _QUOTE, _ZERO = 44, 10, 45, 46, 34, 48


@jit
def word_hash(text, start, stop):
    """FNV-1a (Fowler, Noll, Vo), 64 bits."""
    mixed = np.uint64(0xCBF29CE484222325)
    for i in range(start, stop):
        mixed = (mixed ^ np.uint64(text[i])) * np.uint64(0x100000001B3)
    return mixed ^ (mixed >> np.uint64(32))


@jit
def _find(text, start, stop, slots, places, pool):
    """The number of a word, −1 if it is not known."""
    mask = np.uint64(len(slots) - 1)
    at = word_hash(text, start, stop) & mask
    while slots[at] != 0:
        word = slots[at] - 1
        first, length = places[word, 0], places[word, 1]
        if length == stop - start:
            same = True
            for i in range(length):
                if pool[first + i] != text[start + i]:
                    same = False
                    break
            if same:
                return word
        at = (at + np.uint64(1)) & mask
    return np.int64(-1)


@jit
def _missing(text, start, stop):
    """Nothing, nan, NaN, -124 or -124.0."""
    n = stop - start
    if n == 0:
        return True
    if n == 3:
        outer, inner = text[start], text[start + 1]
        return inner == 97 and text[start + 2] == outer and (outer == 78 or outer == 110)
    if n != 4 and n != 6:
        return False
    if text[start] != _MINUS or text[start + 1] != 49 or text[start + 2] != 50 or text[start + 3] != 52:
        return False
    return n == 4 or (text[start + 4] == _POINT and text[start + 5] == _ZERO)


@jit
def _whole(text, start, stop, point):
    """(value, True) of `-?[0-9]{1,18}`, followed by `.0*` where a point is allowed; else (0, False)."""
    at, value = start, np.int64(0)
    if at < stop and text[at] == _MINUS:
        at += 1
    first = at
    while at < stop and _ZERO <= text[at] <= _ZERO + 9:
        if at - first == 18:
            return np.int64(0), False
        value = value * 10 + (np.int64(text[at]) - _ZERO)
        at += 1
    if at == first:
        return np.int64(0), False
    if at < stop:
        if not point or text[at] != _POINT:
            return np.int64(0), False
        for i in range(at + 1, stop):
            if text[i] != _ZERO:
                return np.int64(0), False
    return -value if text[start] == _MINUS else value, True


@jit
def _date(text, start, stop):
    """(YYYYMMDD, True) of YYYY-MM-DD; else (0, False)."""
    if stop - start != 10:
        return np.int64(0), False
    value = np.int64(0)
    for i in range(10):
        byte = np.int64(text[start + i])
        if i == 4 or i == 7:
            if byte != _MINUS:
                return np.int64(0), False
        elif byte < _ZERO or byte > _ZERO + 9:
            return np.int64(0), False
        else:
            value = value * 10 + (byte - _ZERO)
    return value, True


@jit
def table_lines(text, kinds, state, values, valid, lengths, listed, slots, places, pool, ids, found, counts):
    """Reads lines until the text is done, or until it must ask. Returns DONE, ODD (a line) or UNKNOWN (a word).

    Args:
        text: [n] uint8, lines that each end in a newline.
        kinds: [F] int64, of which at most one is WORDS.
        state: [5] int64, see AT … STOP; stopped at a line, AT is its start and STOP its newline.
        values, valid: [F, L] int64 and bool: what was read. lengths [L], listed [·] int64: the lists, as numbers of
            words.
        slots, places, pool, ids: the words met so far, see `Words`.
        found: [F] int64, room for the words of a line. counts: [F, W] int64: rows (or places in lists) by word.
    """
    fields, n = len(kinds), len(text)
    while state[AT] < n:
        line, row, at = state[AT], state[ROW], state[AT]
        listing, first_listed, words_column = state[LISTED], state[LISTED], -1
        good = True
        for f in range(fields):
            end = _NEWLINE if f == fields - 1 else _COMMA
            if text[at] == _QUOTE:
                start = at + 1
                stop = start
                while text[stop] != _QUOTE and 32 <= text[stop] < 127:
                    stop += 1
                if text[stop] != _QUOTE:
                    good = False
                    break
                at = stop + 1
            else:
                start = at
                while text[at] != _COMMA and text[at] != _QUOTE and 32 <= text[at] < 127:
                    at += 1
                stop = at
            if text[at] != end:
                good = False
                break
            at += 1
            kind = kinds[f]
            found[f] = -1
            if _missing(text, start, stop):
                if kind == KEY:
                    good = False
                    break
                values[f, row], valid[f, row] = 0, False
                if kind == WORDS:
                    lengths[row] = 0
                continue
            valid[f, row] = True
            if kind in (KEY, NUMBER):
                values[f, row], good = _whole(text, start, stop, kind == NUMBER)
            elif kind == DATE:
                values[f, row], good = _date(text, start, stop)
            elif kind == WORD:
                word = _find(text, start, stop, slots, places, pool)
                if word < 0:
                    state[START], state[STOP] = start, stop
                    return UNKNOWN
                found[f], values[f, row] = word, ids[word]
            else:
                words_column, begin = f, start
                while True:
                    border = begin
                    while border < stop and text[border] != _COMMA:
                        border += 1
                    if border == begin:
                        good = False
                        break
                    word = _find(text, begin, border, slots, places, pool)
                    if word < 0:
                        state[START], state[STOP] = begin, border
                        return UNKNOWN
                    listed[listing] = word
                    listing += 1
                    if border == stop:
                        break
                    begin = border + 1
                lengths[row] = listing - first_listed
            if not good:
                break
        if not good:
            stop = line
            while text[stop] != _NEWLINE:
                stop += 1
            state[START], state[STOP] = line, stop
            return ODD
        for f in range(fields):
            if found[f] >= 0:
                counts[f, found[f]] += 1
        for i in range(first_listed, listing):
            counts[words_column, listed[i]] += 1
        state[AT], state[ROW], state[LISTED] = at, row + 1, listing
    return DONE
