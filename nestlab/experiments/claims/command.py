"""The command that answers a claim, and why it cannot be run where it cannot."""

from __future__ import annotations

import shlex
from pathlib import Path

import nestlab
from nestlab.errors import UserError
from nestlab.experiments.claims.form import Claim


def argv(claim: Claim, results_dir: str) -> list[str]:
    """The words after `nestlab` of the command that answers a claim.

    Raises:
        UserError: the claim cannot be tested, or no command answers it yet.
    """
    if not claim.testable:
        raise UserError(f"claim {claim.id} has no run to wait for, it is '{claim.answer}': {claim.reason}")
    if claim.command is None:
        raise UserError(f"no command answers claim {claim.id} yet ({claim.answer}): {claim.reason}")
    words = shlex.split(claim.command)[1:]
    if words[0] == "run":
        words[1] = str(_notebook(claim, words[1]))
    if words[0] == "bench":
        _check_benchmark(claim, words[1])
        return words
    return [*words, "--results", results_dir]


def _notebook(claim: Claim, name: str) -> Path:
    """Found from the current folder or, as the command runs from any, beside the package."""
    for folder in (Path.cwd(), Path(nestlab.__file__).resolve().parent.parent):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"no command answers claim {claim.id} yet: it will be {name}, which is not there")


def _check_benchmark(claim: Claim, name: str) -> None:
    from nestlab import benchmarks

    if name not in benchmarks.names():
        raise UserError(f"no command answers claim {claim.id} yet: it will be nestlab bench {name}, which is not there")
