"""The kernel a notebook runs in: this interpreter's, described privately, and reached over a socket file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from nestlab.errors import UserError

DEFAULT = "python3"
MANAGER = "nestlab.notebook.ipc.KernelManager"  # named, so that only the worker imports jupyter


def private_folder() -> Path:
    """A new folder for one kernel's description, connection file and sockets.

    It lies in the system's temporary folder, never in the run's: the path of a socket is limited to about a hundred
    characters. Where even that is long (macOS), /tmp is taken.
    """
    short = len(tempfile.gettempdir()) <= 30
    return Path(tempfile.mkdtemp(prefix="nestlab-", dir=None if short else "/tmp"))


def describe_own(folder: Path) -> None:
    """Writes a kernel specification that starts exactly this interpreter.

    A kernel of the same name installed by some other environment would otherwise be found first, or none at all.
    """
    target = folder / "kernels" / DEFAULT
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    specification = {"argv": command, "display_name": "Python 3 (NestLab)", "language": "python"}
    (target / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")


def check(name: str) -> None:
    """Refuses a kernel that is not installed, before a run is created.

    Raises:
        UserError: there is no kernel of that name.
    """
    if name == DEFAULT:
        return
    from jupyter_client.kernelspec import KernelSpecManager

    known = sorted({DEFAULT, *KernelSpecManager().find_kernel_specs()})
    if name not in known:
        raise UserError(f"no kernel named '{name}' is installed: there is {', '.join(known)}")


def environment(folder: Path) -> dict[str, str]:
    """The variables that make jupyter use `folder` and leave the user's own settings out of a run."""
    paths = [str(folder), *filter(None, [os.environ.get("JUPYTER_PATH")])]
    return {
        "JUPYTER_PATH": os.pathsep.join(paths),
        "JUPYTER_RUNTIME_DIR": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # the debugger's warning about frozen modules says nothing about a run
    }
