"""Memory that is asked for again at once need not go back to the kernel in between."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 256 << 20
_USUAL = 32 << 20  # the most that glibc's own rule arrives at, once a block of that size was freed


@contextmanager
def kept_memory() -> Iterator[None]:
    """Blocks below 256 MiB that are freed inside are used again, and given back at the end.

    The kernel clears every page that it hands out: for arrays that are made anew for each block of rows that was a
    third of the time. Where the C library is not glibc, nothing happens.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _KEPT)
    library.mallopt(_TRIM_THRESHOLD, 4 * _KEPT)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _USUAL)
        library.mallopt(_TRIM_THRESHOLD, 2 * _USUAL)
        library.malloc_trim(0)
