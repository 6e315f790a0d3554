"""`python -m nestlab.interop.install`: adds torchrec and the fbgemm that belongs to this machine.

No dependency file can say "without its dependencies", and `pip install torchrec` would pull the CUDA build of fbgemm
over the CPU one: both install the same package folder. So the pair is installed here, without dependencies, and what
they need after it, with torch held where it is. Nothing heavy is imported: when all is in place this takes a blink.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nestlab.interop import versions

# What torchrec 1.8 imports. iopath is used by its Criteo readers only, which NestLab does without.
NEEDS = {"tensordict": "", "torchmetrics": "1.0.3", "tqdm": "", "pyre-extensions": ""}

_MARK = "nestlab-import: "
_IMPORTS = f"""
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        fault = ""
    except BaseException as error:
        fault = " ".join(f"{{type(error).__name__}}: {{error}}".splitlines()[:1])
    print(f"{_MARK}{{name}} {{fault}}", flush=True)
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nestlab.interop.install", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--strict", action="store_true", help="a failed installation is an error, not a warning")
    args = parser.parse_args(argv)
    try:
        print(install())
    except InstallError as error:
        print(f"warning: torchrec was not installed: {error}; NestLab works without it", file=sys.stderr)
        return 1 if args.strict else 0
    return 0


class InstallError(Exception):
    """The installation did not succeed; NestLab works without it."""


def install() -> str:
    """Brings torchrec, fbgemm and what they need into this environment; returns one line that says what was done."""
    torch = installed("torch")
    flavour = versions.fbgemm_flavour(platform.system(), platform.machine(), has_nvidia(), torch)
    if flavour is None:
        return "torchrec: skipped: no fbgemm build for this platform"
    if torch is None or versions.major_minor(torch) != versions.major_minor(versions.TORCH):
        raise InstallError(f"it needs torch {versions.TORCH}, found {torch or 'none'}; pip install -e . puts it right")
    if in_place(flavour):
        return f"torchrec {versions.TORCHREC} with {flavour} {versions.FBGEMM}: in place"
    _remove_other_flavour(flavour)
    pip("install", "--no-deps", f"torchrec=={versions.TORCHREC}", f"{flavour}=={versions.FBGEMM}")
    _install_needs(torch)
    verify()
    return f"torchrec {versions.TORCHREC} with {flavour} {versions.FBGEMM}: installed"


def in_place(flavour: str) -> bool:
    """Whether exactly the right distributions are installed, going by their metadata alone."""
    pair = {"torchrec": versions.TORCHREC, flavour: versions.FBGEMM}
    needs = all(_satisfied(name, version) for name, version in (NEEDS | pair).items())
    return needs and installed(_other(flavour)) is None


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_nvidia() -> bool:
    """Whether an NVIDIA driver is at work here; asked without torch, whose import takes longer than all the rest."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def verify() -> None:
    """Imports the pair in a process of its own: a wrong binary may crash, not only raise."""
    for module, fault in import_faults(["fbgemm_gpu", "torchrec"]).items():
        if fault is not None:
            raise InstallError(f"{module} is installed but cannot be imported: {fault}")


def import_faults(modules: list[str]) -> dict[str, str | None]:
    """Why each import fails in a fresh interpreter, in one line; None where it works.

    One interpreter for all, one after the other, since they share their load.
    """
    result = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *modules],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    faults = dict(line.removeprefix(_MARK).split(" ", 1) for line in lines)
    found = {name: fault or None for name, fault in faults.items()}
    left = [name for name in modules if name not in found]
    if left:  # the interpreter itself died on the first of them
        found[left[0]] = f"the interpreter ended with status {result.returncode}"
        found |= import_faults(left[1:]) if left[1:] else {}
    return found


def pip(*arguments: str) -> None:
    """Runs this interpreter's pip quietly.

    Raises:
        InstallError: pip failed; its last line says why.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise InstallError(errors[-1] if errors else f"pip ended with status {result.returncode}")


def _remove_other_flavour(flavour: str) -> None:
    # Both flavours own the same files: removing one of two breaks the one that stays, so both go.
    if installed(_other(flavour)) is not None:
        present = [name for name in (versions.FBGEMM_CPU, versions.FBGEMM_CUDA) if installed(name)]
        pip("uninstall", "-y", *present)


def _install_needs(torch: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        constraint = Path(folder) / "constraints.txt"
        constraint.write_text(f"torch=={torch.split('+')[0]}\n")
        wanted = [f"{name}=={version}" if version else name for name, version in NEEDS.items()]
        pip("install", "-c", str(constraint), *wanted)


def _satisfied(name: str, version: str) -> bool:
    found = installed(name)
    return found is not None and (not version or found.split("+")[0] == version)


def _other(flavour: str) -> str:
    return versions.FBGEMM_CUDA if flavour == versions.FBGEMM_CPU else versions.FBGEMM_CPU


if __name__ == "__main__":
    sys.exit(main())
