"""Finding and ending every process of one run.

A kernel runs in a session of its own, its workers perhaps in others, and any parent may already be dead: neither a
process group nor a tree of parents holds them all. What they do share is the environment they were started with, so
each run puts a token there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TOKEN = "NESTLAB_RUN_TOKEN"
_POLITE_SECONDS = 2.0


def marked(token: str) -> list[int]:
    """Living processes that carry the token, this one excepted."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token:
                found.append(process.pid)
    return found


def end_all(token: str, polite_seconds: float = _POLITE_SECONDS) -> int:
    """Ends every process that carries the token, by SIGTERM and then by SIGKILL; returns how many there were."""
    seen = set(marked(token))
    _signal(seen, signal.SIGTERM)
    deadline = time.monotonic() + polite_seconds
    while (alive := marked(token)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(100):  # a process may have started another one just before its end
        if not alive:
            break
        seen.update(alive)
        _signal(alive, signal.SIGKILL)
        time.sleep(0.05)
        alive = marked(token)
    return len(seen)


def _signal(pids: set[int] | list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
