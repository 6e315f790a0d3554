"""The runs that a kernel has open: a cell that is run again, or interrupted, leaves none that says `running` for ever.

Only in a kernel: a program may hold as many runs open as it likes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from nestlab.results import origin

if TYPE_CHECKING:
    from nestlab.results.run import Run


@dataclasses.dataclass(frozen=True)
class _Cell:
    """The cell that runs now: `name` is the same when it is run again, `execution` is not."""

    name: str
    execution: str


_open: list[tuple[Run, _Cell]] = []
_watched: list[Any] = []  # the shell whose cells are watched


def opened(run: Run) -> None:
    """Remembers a run, and ends what an earlier execution of the same cell left open."""
    cell = _current()
    if cell is None:
        return
    for earlier, its_cell in list(_open):
        again = its_cell.name == cell.name and its_cell.execution != cell.execution
        if again and earlier.manifest["experiment"] == run.manifest["experiment"]:
            with _its_folder_may_be_gone():
                earlier.finish("killed", exception=f"superseded by {run.id}: its cell was run again")
    _open.append((run, cell))
    _watch()


def closed(run: Run) -> None:
    _open[:] = [entry for entry in _open if entry[0] is not run]


def _current() -> _Cell | None:
    shell = origin.kernel_shell()
    if shell is None:
        return None
    request = origin.request_of(shell)
    named = request.get("metadata", {}).get("cellId") or request.get("content", {}).get("code", "")
    return _Cell(str(named), str(request.get("header", {}).get("msg_id", "")))


def _watch() -> None:
    shell = origin.kernel_shell()
    if shell not in _watched:
        _watched[:] = [shell]
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    error = getattr(result, "error_in_exec", None)
    if error is None:
        return
    for run, _ in list(_open):
        with _its_folder_may_be_gone():
            run.cell_failed(error)


def _its_folder_may_be_gone() -> contextlib.AbstractContextManager[None]:
    """Somebody has removed an open run's folder: there is nothing left that could say `running`."""
    return contextlib.suppress(OSError, ValueError)
