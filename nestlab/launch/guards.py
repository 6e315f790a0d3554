"""What surrounds a launch, so that the process that called it is afterwards as it was before."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

from nestlab.host import kept_buffers, short_spin

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_TALKATIVE = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")
_KILL_S = 3.0  # for a process that was killed to be gone


@contextlib.contextmanager
def caller_as_before(threads: int) -> Iterator[None]:
    """Around a launch of ranks with so many threads each: signals, environment, children and log levels come back."""
    with _quiet_launcher(), _signals_as_before(), _children_ended(), _threads_of_ranks(threads):
        yield


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """torch's launcher warns of each process that it ends: what happened is in our error."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """torch's launcher takes signals over for good; a signal that came meanwhile is raised again for the caller."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from torch.distributed.elastic.multiprocessing import SignalException

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = None
    try:
        yield
    except SignalException as error:
        caught = error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught is not None:
        signal.raise_signal(caught.sigval)
        raise caught


@contextlib.contextmanager
def _children_ended() -> Iterator[None]:
    """Whoever was started meanwhile is gone afterwards, also where starting itself was interrupted."""
    before = {child.pid for child in multiprocessing.active_children()}
    tracked = getattr(resource_tracker._resource_tracker, "_pid", None) is not None
    try:
        yield
    finally:
        for child in multiprocessing.active_children():
            if child.pid not in before:
                child.kill()
                child.join(_KILL_S)
        if not tracked and not before:
            with contextlib.suppress(AttributeError, OSError, ChildProcessError):
                resource_tracker._resource_tracker._stop()  # the process that multiprocessing starts beside ours


@contextlib.contextmanager
def _threads_of_ranks(threads: int) -> Iterator[None]:
    """OpenMP and glibc read their variables early, so that they must be there before a process starts."""
    # A rank that is ended by force leaves semaphores, which multiprocessing's tracker removes; it need not warn of it.
    warnings = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning")))
    wanted = {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": warnings}
    wanted |= short_spin() | kept_buffers()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
