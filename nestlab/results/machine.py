"""What a manifest says about the code, the packages, the machine and the process of a run."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from nestlab import host

PACKAGES = (
    *("nestlab", "torch", "numpy", "numba", "scipy", "scikit-learn", "pandas", "pyarrow", "datasets", "duckdb"),
    *("matplotlib", "papermill", "nbclient", "ipykernel", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu"),
)

# What decides how threads wait and how many there are: a measured time means little without it.
THREAD_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def describe() -> dict[str, Any]:
    """The fields of a manifest that depend on where a run happens, not on what it does."""
    return {
        "commit": commit(),
        "packages": packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": host.cpu_model(),
        "cores": host.cores(),
        "memory_bytes": host.memory_bytes(),
        "threads": {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ},
        "accelerator": accelerator(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }


@functools.cache
def commit() -> dict[str, Any] | None:
    """The commit of the code that runs and whether the tree differs from it; None outside a git checkout."""
    here = Path(__file__).resolve()
    # An installed copy may lie inside somebody else's repository: only a file that git tracks speaks for its commit.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    sha, changes = _git(here.parent, "rev-parse", "HEAD"), _git(here.parent, "status", "--porcelain")
    return None if sha is None else {"sha": sha, "dirty": bool(changes)}


def packages() -> dict[str, str]:
    """Installed versions of the packages that can change a number."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def launcher() -> list[str] | None:
    """The command line of the torchrun that started this process, as it was given; None where there is none."""
    if not os.environ.get("TORCHELASTIC_RUN_ID"):
        return None
    import psutil

    try:
        return psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return None


def accelerator() -> str | None:
    """The accelerator's name; None without one, or while torch is not loaded (loading it only to ask costs seconds)."""
    if "torch" not in sys.modules:
        return None
    from nestlab import device

    return device.accelerator_name()


def this_process() -> dict[str, Any]:
    """Identifies this process on this host for as long as the host is up; a number alone is used again."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_gone(process: dict[str, Any] | None) -> bool:
    """Whether a process recorded by `this_process` has ended. False where that cannot be known (another host)."""
    if not isinstance(process, dict) or process.get("host") != platform.node():
        return False
    started = _started(process.get("pid"))
    return started is None or started != process.get("started")


def _started(pid: Any) -> float | None:
    """When a process began; None if it is not there or is only waiting to be reaped."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, TypeError, ValueError):
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
