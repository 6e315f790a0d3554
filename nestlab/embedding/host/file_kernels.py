"""Numba kernels of the record file: many records in one call, with the system's own calls.

`pread` and its kin are found by name in the C library, so that nothing of Python runs between two records.
`preadv2(RWF_NOWAIT)` answers at once from the page cache, or starts the read and refuses; what was refused is read
again, waiting, once many reads are on their way: one call a record while the cache is warm, a full queue at the disk
while it is not (docs/log.md has what the other ways gave).

Memory whose address goes to the system belongs to the caller (`scratch`): an array made in a kernel is freed after its
last use as an array, whatever addresses of it are still in use.
"""

from __future__ import annotations

import sys

import numpy as np
from numba import types

from nestlab.jit import inlined, jit

QUEUE = 256  # reads on their way at once; 64 … 1,024 measured alike
SPAN = 1 << 16  # bytes of the longest stretch of the file that one call reads or writes
GAP = 2048  # bytes between two records up to which reading them too is cheaper than a second call
SAMPLE = 16  # before writing, one page in so many is asked for; all of them if one was not in the page cache

_NOWAIT = 8  # RWF_NOWAIT
_WORDS = 2  # of a `scratch` before its buffer: the address and the length that `preadv2` is given
_word = types.uintp
_pread = types.ExternalFunction("pread", types.intp(types.int32, _word, _word, types.int64))
_pwrite = types.ExternalFunction("pwrite", types.intp(types.int32, _word, _word, types.int64))
_memcpy = types.ExternalFunction("memcpy", _word(_word, _word, _word))

if sys.platform == "linux":
    _preadv2 = types.ExternalFunction("preadv2", types.intp(types.int32, _word, types.int32, types.int64, types.int32))

    @inlined
    def _read_cached(fd, aside, address, count, offset):
        """Bytes read without waiting; not `count` where the page cache lacks some, whose reading has begun."""
        aside[0] = address
        aside[1] = count
        return _preadv2(fd, aside.ctypes.data, 1, offset, _NOWAIT)

else:

    @inlined
    def _read_cached(fd, aside, address, count, offset):
        return _pread(fd, address, count, offset)


@inlined
def _read_all(fd, address, count, offset):
    """True once all bytes are there; a read may stop early without an error."""
    done = 0
    while done < count:
        got = _pread(fd, address + done, count - done, offset + done)
        if got <= 0:
            break
        done += got
    return done == count


@inlined
def _write_all(fd, address, count, offset):
    done = 0
    while done < count:
        got = _pwrite(fd, address + done, count - done, offset + done)
        if got <= 0:
            break
        done += got
    return done == count


@inlined
def _stretch(rows, begin, size, gap):
    """The end of the longest stretch of records from rows[begin] on, `gap` bytes apart at most and SPAN bytes long."""
    end = begin + 1
    while (
        end < rows.size
        and (rows[end] - rows[end - 1] - 1) * size <= gap
        and (rows[end] + 1 - rows[begin]) * size <= SPAN
    ):
        end += 1
    return end


@inlined
def _scatter(rows, frames, begin, end, memory, size, buffer):
    for i in range(begin, end):
        _memcpy(memory + frames[i] * size, buffer + (rows[i] - rows[begin]) * size, size)


def scratch(size: int) -> np.ndarray:
    """What one call of a kernel below needs aside, for records of `size` bytes: two words for `preadv2`, a buffer."""
    return np.empty(_WORDS + -(-max(SPAN, size) // 8), np.uint64)


@jit
def read_records(fd, size, rows, frames, memory, aside):
    """Reads the records of rows [n] int64, ascending, into the frames [n] int64 of the memory at address `memory`.

    Records that lie close together come in one call by way of `aside`, a `scratch`. Returns −1, or the place in `rows`
    of the first record that could not be read.
    """
    waiting, count, begin = np.empty((QUEUE, 2), np.int64), 0, 0
    buffer = aside.ctypes.data + 8 * _WORDS
    while begin < rows.size:
        end = _stretch(rows, begin, size, GAP)
        whole = (rows[end - 1] + 1 - rows[begin]) * size
        target = memory + frames[begin] * size if end == begin + 1 else buffer
        if _read_cached(fd, aside, target, whole, rows[begin] * size) != whole:
            waiting[count, 0] = begin
            waiting[count, 1] = end
            count += 1
        elif end > begin + 1:
            _scatter(rows, frames, begin, end, memory, size, buffer)
        begin = end
        if count == QUEUE or (begin == rows.size and count > 0):
            for k in range(count):
                first, last = waiting[k, 0], waiting[k, 1]
                whole = (rows[last - 1] + 1 - rows[first]) * size
                if not _read_all(fd, buffer, whole, rows[first] * size):
                    return first
                _scatter(rows, frames, first, last, memory, size, buffer)
            count = 0
    return -1


@inlined
def _ask(fd, size, rows, begin, end, step, aside, byte):
    """Has the pages of every `step`-th record read that are not cached; True if there was one."""
    lacking = False
    for i in range(begin, end, step):
        if _read_cached(fd, aside, byte, 1, rows[i] * size) != 1:
            lacking = True
    return lacking


@jit
def write_records(fd, size, rows, frames, memory, aside):
    """Writes the frames [n] to the records of rows [n], ascending; runs of adjacent rows in one call.

    A record that fills no whole page makes the system read the page first if it is not cached, and wait: such pages
    are asked for ahead. `aside` is a `scratch`. Returns −1, or the place in `rows` of the first record that could not
    be written.
    """
    buffer = aside.ctypes.data + 8 * _WORDS
    asked = begin = 0
    while begin < rows.size:
        if begin >= asked:
            asked = min(rows.size, begin + QUEUE)
            if _ask(fd, size, rows, begin, asked, SAMPLE, aside, buffer):
                _ask(fd, size, rows, begin, asked, 1, aside, buffer)
        end = _stretch(rows, begin, size, 0)
        source = memory + frames[begin] * size
        if end > begin + 1:
            source = buffer
            for i in range(begin, end):
                _memcpy(buffer + (i - begin) * size, memory + frames[i] * size, size)
        if not _write_all(fd, source, (end - begin) * size, rows[begin] * size):
            return begin
        begin = end
    return -1


def warm_up() -> None:
    """Compiles (or loads from numba's cache) every kernel above, on no record at all."""
    none, aside = np.empty(0, np.int64), scratch(8)
    read_records(0, 8, none, none, none.ctypes.data, aside)
    write_records(0, 8, none, none, none.ctypes.data, aside)
