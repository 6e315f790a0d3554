"""The worker process as the command sees it: started with a request, read event by event, ended without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nestlab import paths
from nestlab.notebook import kernel, processes
from nestlab.results.starting import ADOPT

TICK_SECONDS = 1.0


class Worker:
    """One papermill worker for one run folder. Use as a context manager: leaving it ends every process of the run."""

    def __init__(self, folder: Path, kernel_name: str, notebook: Path) -> None:
        self._notebook = notebook.resolve()
        self._token = uuid.uuid4().hex
        self._private = kernel.private_folder()
        self._reader, writer = os.pipe()
        if kernel_name == kernel.DEFAULT:
            kernel.describe_own(self._private)
        extra = kernel.environment(self._private) | {ADOPT: str(folder), processes.TOKEN: self._token}
        extra[paths.NOTEBOOK] = str(self._notebook)
        with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nestlab.notebook.worker"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=os.environ | extra,
                pass_fds=(writer,),
                start_new_session=True,  # Ctrl-C reaches the command alone, which then ends the rest in order
            )
        os.close(writer)
        self._request = {"kernel": kernel_name, "private": str(self._private), "events": writer}

    def execute(self, output: Path, values: dict[str, Any]) -> None:
        """Sends the request. Standard input stays open: its end would tell the worker that nobody waits."""
        request = self._request | {"input": str(self._notebook), "output": str(output), "parameters": values}
        with contextlib.suppress(BrokenPipeError):  # the worker is dead already; its exit status will say so
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def events(self, deadline: float | None) -> Iterator[dict[str, Any] | None]:
        """What the worker tells, until it ends; None about once a second in between.

        Raises:
            TimeoutError: the clock (time.monotonic) passed `deadline`.
        """
        pending = b""
        while True:
            left = TICK_SECONDS if deadline is None else min(TICK_SECONDS, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            if not select.select([self._reader], [], [], left)[0]:
                yield None
                continue
            if not (chunk := os.read(self._reader, 65536)):
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines)

    def wait(self, deadline: float | None) -> int:
        """The worker's exit status.

        Raises:
            TimeoutError: it has closed its events but does not end.
        """
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self._process.wait(left)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            processes.end_all(self._token)
            self._process.wait()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            os.close(self._reader)
            shutil.rmtree(self._private, ignore_errors=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C and SIGTERM meanwhile: an impatient second Ctrl-C must not leave processes behind."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated as Ctrl-C is: nothing may be left behind."""


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM raise, so that the way out is the same as after Ctrl-C."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
