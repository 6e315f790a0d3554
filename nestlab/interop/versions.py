"""Which torch, torchrec and fbgemm go together, as pure functions of version strings.

torchrec's own release check maps torchrec 1.X to torch 2.(X+5), with fbgemm at the same 1.X. The pairing is strict:
fbgemm's binaries are linked against one torch, and another one fails at import with an undefined symbol.
"""

from __future__ import annotations

import re

TORCH = "2.13.0"
TORCHREC = "1.8.0"
FBGEMM = "1.8.0"

FBGEMM_CPU = "fbgemm-gpu-cpu"
FBGEMM_CUDA = "fbgemm-gpu"

_MINOR_OFFSET = 5
_REMEDY = "make torchrec"


def major_minor(version: str) -> tuple[int, int]:
    """(2, 13) of `2.13.0+cpu`.

    Raises:
        ValueError: the text does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"'{version}' is not a version: expected numbers such as 2.13.0")
    return int(match[1]), int(match[2])


def torchrec_for(torch: str) -> tuple[int, int]:
    """The torchrec (and fbgemm) release, as (major, minor), that belongs to a torch version."""
    major, minor = major_minor(torch)
    if major != 2 or minor < _MINOR_OFFSET:
        raise ValueError(f"no torchrec release is known for torch {torch}")
    return 1, minor - _MINOR_OFFSET


def mismatches(torch: str | None, torchrec: str | None, fbgemm: dict[str, str]) -> list[str]:
    """What is wrong with a set of installed versions, one line each with its remedy; empty when all match.

    Args:
        torch: the installed torch, or None.
        torchrec: the installed torchrec, or None; its absence is no fault.
        fbgemm: the installed fbgemm flavours, distribution name → version.
    """
    if torch is None:
        return ["torch is not installed: run make test, which creates the environment"]
    found = []
    if len(fbgemm) > 1:
        found.append(
            f"{' and '.join(sorted(fbgemm))} are both installed and overwrite each other's files: run {_REMEDY}"
        )
    if torchrec is None and not fbgemm:
        return found
    try:
        wanted = torchrec_for(torch)
    except ValueError as error:
        return [*found, f"{error}: install torch {TORCH}, then run {_REMEDY}"]
    if torchrec is not None and not fbgemm:
        found.append(f"torchrec {torchrec} is installed without fbgemm: run {_REMEDY}")
    installed = ({"torchrec": torchrec} if torchrec else {}) | dict(sorted(fbgemm.items()))
    for name, version in installed.items():
        if major_minor(version) != wanted:
            found.append(
                f"{name} {version} does not match torch {torch} (needs {wanted[0]}.{wanted[1]}): run {_REMEDY}"
            )
    return found


def fbgemm_flavour(system: str, machine: str, nvidia: bool, torch: str | None = None) -> str | None:
    """The fbgemm distribution for a platform, or None where there is no build.

    Args:
        system: as `platform.system()`.
        machine: as `platform.machine()`.
        nvidia: whether an NVIDIA GPU is there.
        torch: the installed torch; its `+cpu` build cannot load the CUDA flavour, whatever the machine has.
    """
    if system != "Linux" or machine.lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return None
    return FBGEMM_CUDA if nvidia and "+cpu" not in (torch or "") else FBGEMM_CPU
