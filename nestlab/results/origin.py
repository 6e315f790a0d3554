"""How this process came to run: what executes the notebook, if it is one, and which file that is.

A kernel is told neither. What it can see is the message that asks it to run a cell, and the process that sent it:

* a front end (JupyterLab, Notebook, VS Code) lets a cell ask for input and names the cell; its messages come from a
  browser. The server that started the kernel leaves the notebook's path in JPY_SESSION_NAME;
* nbclient, under papermill and under nbconvert alike, forbids input, and its messages carry their sender's process.
  Then it is papermill if a cell of injected parameters ran, if PAPERMILL_* variables are there (--inject-paths), if the
  sender's command line says so, or if the kernel was asked for its description once only: papermill asks when the
  kernel starts, nbclient by itself once more.

JPY_SESSION_NAME alone proves nothing: a papermill that is called from a notebook hands it on to its own kernel.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

_SENDER = re.compile(r"_(\d+)_(\d+)$")  # jupyter_client: <session>_<process>_<number of the message>
_INJECTED = "# Parameters\n"  # the first line that papermill writes into its cell
_EXECUTORS = ("nbconvert", "jupyter-execute", "nbclient", "nbmake")


@dataclasses.dataclass(frozen=True)
class Origin:
    """What is known.

    Attributes:
        via: library, papermill or notebook.
        because: the sign that decided.
        notebook: the file that is executed, or None.
        output: where papermill writes the executed notebook, or None.
    """

    via: str
    because: str
    notebook: Path | None = None
    output: Path | None = None


def find() -> Origin:
    """How this process came to run, as far as can be told now: the cell that runs decides."""
    shell = kernel_shell()
    if shell is None:
        return Origin("library", "no kernel")
    request = request_of(shell)
    sender = _SENDER.search(str(request.get("header", {}).get("msg_id", "")))
    front_end = request.get("content", {}).get("allow_stdin", True) or "cellId" in request.get("metadata", {})
    if front_end or sender is None:
        return Origin("notebook", "a front end asked for the cell", _front_end_notebook(shell, sender))
    return _unattended(shell, int(sender[1]), int(sender[2]))


def kernel_shell() -> Any:
    """IPython's shell if this process is a kernel, else None."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    return None if getattr(shell, "kernel", None) is None else shell


def request_of(shell: Any) -> dict[str, Any]:
    """The message that asked for the cell which runs now; empty where none did (a thread, a comm)."""
    try:
        return shell.kernel.get_parent("shell") or {}
    except (AttributeError, LookupError, TypeError):
        return {}


def _front_end_notebook(shell: Any, sender: re.Match[str] | None) -> Path | None:
    # A program that only talks to the kernel has inherited the name, if it has one, from its own kernel.
    if sender is not None and os.environ.get("JPY_SESSION_NAME") == _environment(int(sender[1])).get(
        "JPY_SESSION_NAME"
    ):
        return None
    named = os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__")
    return Path(named) if named and Path(named).is_absolute() else None


def _unattended(shell: Any, sender: int, number: int) -> Origin:
    command, folder = _command(sender)
    known = [shell.user_ns.get(f"PAPERMILL_{name}_PATH") for name in ("INPUT", "OUTPUT")]
    paths = [Path(folder, name) if isinstance(name, str) else None for name in known]
    program = [Path(part).name for part in command[:3]]
    if any(paths):
        return Origin("papermill", "PAPERMILL_* variables", *paths)
    if any(part.startswith("papermill") for part in program):
        paths = [Path(folder, part) for part in command[1:] if part.endswith(".ipynb")][:2]
        return Origin("papermill", "the command line of the process that runs the kernel", *paths)
    if any(part.startswith(_EXECUTORS) or part.endswith(_EXECUTORS) for part in program):
        paths = [Path(folder, part) for part in command[1:] if part.endswith(".ipynb")][:1]
        return Origin("notebook", f"executed by {program[1] if len(program) > 1 else program[0]}", *paths)
    history = shell.user_ns.get("In", [])
    if any(cell.startswith(_INJECTED) for cell in history):
        return Origin("papermill", "a cell of injected parameters ran")
    # History begins with an empty entry, and messages are counted from 0: equal means one message before the cells.
    if number == len(history) - 1:
        return Origin("papermill", "the kernel was asked for its description once")
    return Origin("notebook", "executed by a program that shows no sign of papermill")


def _command(pid: int) -> tuple[list[str], str]:
    """A process's command line and folder; empty where they cannot be read."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.cmdline(), process.cwd()
    except psutil.Error:
        return [], ""


def _environment(pid: int) -> dict[str, str]:
    import psutil

    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}
