"""How every kernel is compiled: the interpreter's lock is given back while it runs, machine code is kept on disk.

numba keeps an index of signatures and numbered files of code a function. Two processes that compile one function for
two signatures at once may both take the same number, and the index of one then leads to the code of the other: a kernel
that takes float64 for int64 (numba issues 4807 and 10128, open in 0.68). Ranks, notebooks and tests start side by side,
so that index and code are written, and read, under one lock a folder here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

try:
    import fcntl
except ImportError:  # Windows, which numba guards by retrying
    fcntl = None

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def jit(function: Callable) -> Any:
    """A kernel."""
    return _kept(njit(**_OPTIONS)(function), function)


def inlined(function: Callable) -> Any:
    """A part of kernels that is written into each of its callers, which must lie in the same file."""
    return _kept(njit(inline="always", **_OPTIONS)(function), function)


def _kept(dispatcher: Any, function: Callable) -> Any:
    if dispatcher is not function:  # it is with NUMBA_DISABLE_JIT
        with contextlib.suppress(RuntimeError):  # no folder can be written to: each process compiles for itself
            dispatcher._cache = _Cache(function)  # what cache=True does with numba's own
    return dispatcher


class _Cache(FunctionCache):
    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _LockedFiles(self._cache_path, self._impl.filename_base, stamp)


class _LockedFiles(IndexDataCacheFile):
    def save(self, key: Any, data: Any) -> None:
        with _lock(self._cache_path, alone=True):
            super().save(key, data)

    def load(self, key: Any) -> Any:
        with _lock(self._cache_path, alone=False):
            return super().load(key)


@contextlib.contextmanager
def _lock(folder: str, alone: bool) -> Iterator[None]:
    """Held by one process that writes or by many that read; not held where the folder is read-only or not there yet."""
    with contextlib.ExitStack() as held:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                descriptor = os.open(os.path.join(folder, "numba.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a child forked meanwhile has the file open too
        yield
