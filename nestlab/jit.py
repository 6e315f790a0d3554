"""How every kernel is compiled: the interpreter's lock is given back while it runs, machine code is kept on disk.

numba keeps an index of signatures and numbered files of code a function, and two things of it are mended here.

Two processes that compile one function for two signatures at once may both take the same number, and the index of one
then leads to the code of the other: a kernel that takes float64 for int64 (numba issues 4807 and 10128, open in 0.68).
Ranks, notebooks and tests start side by side, so that index and code are written, and read, under one lock a folder.

Code is kept until the function's own file changes, whatever it calls or reads of others. Here it is kept until any file
changes that has a kernel it calls, or any constant that they read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

try:
    import fcntl
except ImportError:  # Windows, which numba guards by retrying
    fcntl = None

_OPTIONS = {"nogil": True, "error_model": "numpy"}
_CONSTANTS = bool | int | float | str | tuple | np.generic


def jit(function: Callable) -> Any:
    """A kernel."""
    return _kept(njit(**_OPTIONS)(function), function)


def inlined(function: Callable) -> Any:
    """A part of kernels that is written into each of its callers."""
    return _kept(njit(inline="always", **_OPTIONS)(function), function)


def _kept(dispatcher: Any, function: Callable) -> Any:
    if dispatcher is not function:  # it is with NUMBA_DISABLE_JIT
        with contextlib.suppress(RuntimeError):  # no folder can be written to: each process compiles for itself
            dispatcher._cache = _Cache(function)  # what cache=True does with numba's own
    return dispatcher


class _Cache(FunctionCache):
    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, function)


class _Files(IndexDataCacheFile):
    def __init__(self, folder: str, name: str, function: Callable) -> None:
        super().__init__(folder, name, None)
        self._function = function

    def save(self, key: Any, data: Any) -> None:
        with self._locked(alone=True):
            super().save(key, data)

    def load(self, key: Any) -> Any:
        with self._locked(alone=False):
            return super().load(key)

    def _locked(self, alone: bool) -> contextlib.AbstractContextManager[None]:
        self._source_stamp = _stamp(self._function)  # only now is all defined that the function names
        return _lock(self._cache_path, alone)


def _stamp(function: Callable) -> tuple[list, list]:
    """What the function's machine code hangs on: (file, time, bytes) of each kernel that it reaches, and the constants
    that those read."""
    files, constants, reached, waiting = set(), set(), set(), [function]
    while waiting:
        kernel = waiting.pop()
        if kernel in reached:
            continue
        reached.add(kernel)
        code = kernel.__code__
        with contextlib.suppress(OSError):  # of a package that is no folder
            found = os.stat(code.co_filename)
            files.add((os.path.basename(code.co_filename), found.st_mtime, found.st_size))
        named = {name: kernel.__globals__[name] for name in code.co_names if name in kernel.__globals__}
        waiting += [source for source in map(_source, named.values()) if source is not None]
        constants |= {(name, repr(value)) for name, value in named.items() if isinstance(value, _CONSTANTS)}
    return sorted(files), sorted(constants)


def _source(value: Any) -> Callable | None:
    """The Python function of a kernel or an intrinsic; None of anything else."""
    return getattr(value, "py_func", None) or getattr(value, "_defn", None)


@contextlib.contextmanager
def _lock(folder: str, alone: bool) -> Iterator[None]:
    """Held by one process that writes or by many that read; not held where the folder is read-only or not there yet."""
    with contextlib.ExitStack() as held:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                # Read-only, since the file may be another user's.
                descriptor = os.open(os.path.join(folder, "numba.lock"), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a child forked meanwhile has the file open too
        yield
