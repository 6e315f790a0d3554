"""The checks behind `nestlab doctor`. Each returns findings; none raises, and none leaves anything behind."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nestlab import host
from nestlab.interop import install, versions

_GIB = 1 << 30
_LITTLE_DISK = 2 * _GIB
_TORCHREC = "make torchrec"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: ok, note (something is missing that NestLab does without) or fault.
        text: what was found.
        remedy: what to do about it, or None.
    """

    name: str
    state: str
    text: str
    remedy: str | None = None


def checks(data_root: Path, results: Path) -> list[Callable[[], list[Finding]]]:
    """The checks in the order of the report; the name of each says what it looks at."""
    bound = [functools.partial(data, data_root), functools.partial(results_folder, results)]
    for part in bound:
        part.__name__ = part.func.__name__
    return [python, packages, torchrec_and_fbgemm, huggingface_datasets, machine_itself, *bound]


def python() -> list[Finding]:
    text = f"{platform.python_version()} ({sys.executable})"
    return [Finding("python", "ok", text)]


def packages() -> list[Finding]:
    """The packages that nothing works without: installed, and where compiled code is at stake, importable."""
    faults = install.import_faults(["torch", "numpy", "numba"])
    found = []
    for name in ("torch", "numpy", "numba", "pandas", "pyarrow", "duckdb", "papermill"):
        version = install.installed(name)
        if version is None:
            found.append(Finding(name, "fault", "not installed", "pip install -e ."))
        elif faults.get(name):
            text = f"{version}, but cannot be imported: {faults[name]}"
            found.append(Finding(name, "fault", text, "pip install -e . again"))
        else:
            found.append(Finding(name, "ok", version))
    return found


def torchrec_and_fbgemm() -> list[Finding]:
    """Versions of the pair, whether they match torch, and whether they can really be imported."""
    torch_version, torchrec = install.installed("torch"), install.installed("torchrec")
    names = (versions.FBGEMM_CPU, versions.FBGEMM_CUDA)
    fbgemm = {name: version for name in names if (version := install.installed(name))}
    found = [_package("torchrec", torchrec), *_fbgemm(fbgemm)]
    for mismatch in versions.mismatches(torch_version, torchrec, fbgemm):
        text, _, remedy = mismatch.rpartition(": ")
        found.append(Finding("versions", "fault", text, remedy))
    modules = (["fbgemm_gpu"] if fbgemm else []) + (["torchrec"] if torchrec else [])
    for module, fault in install.import_faults(modules).items() if modules else ():
        state, remedy = ("ok", None) if fault is None else ("fault", _TORCHREC)
        found.append(Finding("import", state, f"{module}: {fault or 'works'}", remedy))
    return found


def huggingface_datasets() -> list[Finding]:
    """A folder `datasets` with an __init__.py, or a script of that name, would hide the package from Python."""
    code = "import datasets as d; print(getattr(d, '__version__', 'none')); print(d.__file__ or d.__path__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    version, _, place = result.stdout.strip().partition("\n")
    if result.returncode == 0 and version == install.installed("datasets"):
        return [Finding("datasets", "ok", f"{version} (Hugging Face)")]
    if install.installed("datasets") is None:
        return [Finding("datasets", "fault", "the Hugging Face package is not installed", "pip install -e .")]
    if place:
        remedy = "remove the __init__.py there, or rename it"
        return [Finding("datasets", "fault", f"`import datasets` finds {place}, not the Hugging Face package", remedy)]
    return [Finding("datasets", "fault", f"cannot be imported: {_last_line(result.stderr)}", "pip install -e . again")]


def machine_itself() -> list[Finding]:
    disk = shutil.disk_usage(".")
    text = f"{host.cores()} cores ({host.cpu_model()}), {host.memory_bytes() / _GIB:.1f} GiB memory"
    little = disk.free < _LITTLE_DISK
    return [
        Finding("machine", "ok", text),
        Finding(
            "disk",
            "note" if little else "ok",
            f"{disk.free / _GIB:.1f} GiB free of {disk.total / _GIB:.1f} GiB",
            f"free some: prepared data and results want {_LITTLE_DISK // _GIB} GiB" if little else None,
        ),
        _accelerator(),
    ]


def data(root: Path) -> list[Finding]:
    """Which data sets lie under the root."""
    try:
        from nestlab import data as datasets

        names = [data_set.name for data_set in datasets.available(root) if data_set.found and data_set.kind == "real"]
    except Exception as error:  # a doctor reports what is broken, and goes on
        return [Finding("data", "note", f"cannot look for data under {root}: {type(error).__name__}: {error}")]
    if not names:
        remedy = "notebooks use the synthetic twin; datasets/README.md says how to get the real data"
        return [Finding("data", "note", f"no real data under {root}", remedy)]
    return [Finding("data", "ok", f"{', '.join(names)} under {root}")]


def results_folder(folder: Path) -> list[Finding]:
    """Whether runs can be written; where the folder does not exist yet, whether it could be made."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = "make it writable, or choose another with --results DIR"
        return [Finding("results", "fault", f"cannot write to {folder}: {error.strerror}", remedy)]
    return [Finding("results", "ok", f"{folder} can be written")]


def _package(name: str, version: str | None) -> Finding:
    if version is None:
        flavour = versions.fbgemm_flavour(platform.system(), platform.machine(), install.has_nvidia())
        if flavour is None:
            return Finding(name, "note", "not installed: no fbgemm build for this platform; its rows are skipped")
        return Finding(name, "note", f"not installed: {name} rows are skipped", _TORCHREC)
    return Finding(name, "ok", version)


def _fbgemm(installed: dict[str, str]) -> list[Finding]:
    if not installed:
        return [Finding("fbgemm", "note", "not installed")]
    return [Finding("fbgemm", "ok", f"{name} {version}") for name, version in installed.items()]


def _accelerator() -> Finding:
    """Asked in a process of its own: a driver that is broken can take the asking process with it."""
    code = "from nestlab import device; print(device.accelerator_name() or '')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return Finding("accelerator", "fault", _last_line(result.stderr), "check the driver, or use device=cpu")
    name = result.stdout.strip()
    if not name and install.has_nvidia() and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        text = f"there is an NVIDIA driver, but torch {install.installed('torch')} does not use it"
        return Finding("accelerator", "note", text, "install torch's CUDA build if you want the GPU")
    return Finding("accelerator", "ok", name or "none: everything runs on the CPU")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
