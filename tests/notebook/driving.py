"""The ways in which people execute a notebook, as the tests drive them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbformat.v4 import new_code_cell, new_notebook

from nestlab import results
from nestlab.notebook import parameters

PROJECT = Path(__file__).resolve().parents[2]
QUICKSTART = PROJECT / "notebooks" / "00_quickstart.ipynb"


def write_notebook(path: Path, parameters: str, *codes: str) -> Path:
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *(new_code_cell(code) for code in codes)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def python(code: str, *arguments: Any, cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    """A Python process of its own, such as a scheduler's."""
    return command([sys.executable, "-c", code, *map(str, arguments)], cwd, check)


def module(name: str, *arguments: Any, cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    """A program of this environment by the script that is installed for it."""
    return command([Path(sys.executable).with_name(name), *map(str, arguments)], cwd, check)


def command(words: list[Any], cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def require_complete(folder: Path) -> None:
    """`nestlab run` without real data left a run in this results folder: it says so, and nothing of it is missing."""
    frame = results.list_runs(folder)
    own = frame[frame["via"] == "nestlab run"].iloc[0]
    assert own["status"] == "ok" and own["dataset"]["kind"] == "synthetic" and own["summary"]
    run = results.load(own["path"])
    assert run.tables
    assert pictures(run.path / "notebook.ipynb") == len(list((run.path / "figures").glob("*.png"))) > 0


def pictures(notebook: Path) -> int:
    """How many pictures a reader of the executed notebook sees."""
    cells = parameters.read_notebook(notebook)["cells"]
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


class Kernel:
    """A kernel with somebody in front of it. With `saved_as` it is one that JupyterLab started for that notebook."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, saved_as: Path | None) -> None:
        self.manager, self.client, self._lab = manager, client, saved_as is not None

    def send(self, code: str, cell: str = "a-cell") -> str:
        """Asks for a cell and returns the message's id."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": True, "stop_on_error": True}
        metadata = {"cellId": cell, "deletedCells": [], "recordTiming": False} if self._lab else {}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def reply(self, identity: str, seconds: float = 120) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") == identity:
                return message["content"]

    def run(self, code: str, cell: str = "a-cell") -> dict[str, Any]:
        return self.reply(self.send(code, cell))

    def run_all(self, path: Path, **given: Any) -> None:
        """Every code cell in order; what is given stands in the parameters cell, as if somebody had typed it there."""
        for number, cell in enumerate(nbformat.read(path, 4).cells):
            if cell.cell_type == "code":
                typed = "".join(f"\n{name} = {value!r}" for name, value in given.items())
                extra = typed if "parameters" in cell.metadata.get("tags", []) else ""
                reply = self.run(cell.source + extra, f"cell-{number}")
                assert reply["status"] == "ok", reply

    def value(self, expression: str) -> str:
        """The representation of an expression's value in the kernel."""
        content = {"code": "", "silent": True, "user_expressions": {"asked": expression}}
        message = self.client.session.msg("execute_request", content | {"store_history": False, "allow_stdin": True})
        self.client.shell_channel.send(message)
        answer = self.reply(message["header"]["msg_id"])["user_expressions"]["asked"]
        assert answer["status"] == "ok", answer
        return answer["data"]["text/plain"]


@contextlib.contextmanager
def kernel(cwd: Path, saved_as: Path | None = None, **env: str) -> Iterator[Kernel]:
    environment = os.environ | env | ({} if saved_as is None else {"JPY_SESSION_NAME": str(saved_as)})
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(cwd), env=environment, stderr=subprocess.DEVNULL)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield Kernel(manager, client, saved_as)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
