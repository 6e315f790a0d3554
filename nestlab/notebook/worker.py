"""`python -m nestlab.notebook.worker`: the process in which papermill runs one notebook.

Its standard input holds the request as one line of JSON and then stays open for as long as the command that started it
lives: the end of the stream means that nobody waits any more, and the kernel must not outlive that. Its standard output
and error are the run's log files; what happens is told, one JSON object a line, on a file descriptor of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Any, TextIO

from nestlab.notebook import kernel, processes

_alone = threading.Event()


def main() -> int:
    request = json.loads(sys.stdin.readline())
    watch = threading.Thread(target=_end_with_the_command, args=(request["private"],), daemon=True)
    watch.start()
    os.set_inheritable(request["events"], False)
    try:
        with os.fdopen(request["events"], "w", encoding="utf-8", buffering=1) as events:
            return _execute(request, events)
    finally:
        if _alone.is_set():  # the kernel is gone because the watch ended it; let it finish its work
            watch.join()


def _execute(request: dict[str, Any], events: TextIO) -> int:
    import papermill

    try:
        papermill.execute_notebook(
            request["input"],
            request["output"],
            parameters=request["parameters"],
            kernel_name=request["kernel"],
            language="python",
            kernel_manager_class=kernel.MANAGER,
            progress_bar=False,
            stdout_file=sys.stdout,
            stderr_file=sys.stderr,
            **_hooks(events),
        )
    except Exception as error:
        _tell(events, event="end", status=_status(error), exception=_one_line(error))
        raise  # the whole story goes to stderr.log
    _tell(events, event="end", status="ok", exception=None)
    return 0


def _hooks(events: TextIO) -> dict[str, Any]:
    """nbclient's callbacks around each code cell."""
    began: dict[int, float] = {}

    def start(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code":  # nbclient announces headings too
            began[cell_index] = time.monotonic()
            _tell(events, event="cell", index=cell_index)

    def executed(cell: Any, cell_index: int, execute_reply: dict[str, Any]) -> None:
        seconds = time.monotonic() - began.get(cell_index, time.monotonic())
        status = execute_reply["content"]["status"]
        _tell(events, event="done", index=cell_index, seconds=seconds, status=status)

    return {"on_cell_start": start, "on_cell_executed": executed}


def _status(error: Exception) -> str:
    return "killed" if type(error).__name__ == "DeadKernelError" else "failed"


def _one_line(error: Exception) -> str:
    if type(error).__name__ == "DeadKernelError":
        return "the kernel died (killed, or out of memory)"
    if hasattr(error, "ename"):  # papermill's own: what was raised in a cell
        return f"{error.ename}: {error.evalue}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _tell(events: TextIO, **event: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        events.write(json.dumps(event) + "\n")


def _end_with_the_command(private: str) -> None:
    """Waits for the end of standard input, which the command closes only by ending, and then ends everything."""
    while os.read(0, 4096):
        pass
    _alone.set()
    processes.end_all(os.environ[processes.TOKEN])
    shutil.rmtree(private, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
