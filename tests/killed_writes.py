"""A process that dies at one of its file operations, played in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

OPERATIONS = ("open", "write", "fsync", "rename", "replace", "mkdir", "rmdir", "unlink")


class Killed(BaseException):
    """The process is dead: nothing that it tries from here on happens."""


@contextmanager
def killed_at(last: int) -> Iterator[list[str]]:
    """The `last`-th file operation, from 1, does not happen, nor any after it; half of a write does. 0: none fails.

    Yields:
        the operations so far.
    """
    done: list[str] = []

    def wrap(name: str, real: Callable) -> Callable:
        def operation(*args, **kwargs):
            done.append(name)
            if last and len(done) >= last:
                if name == "write" and len(done) == last:
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Killed(f"{name}, operation {len(done)}")
            return None if name == "fsync" else real(*args, **kwargs)

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield done
