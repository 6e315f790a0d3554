"""Removing runs that are no results: failed, killed or timed out, and older than somebody still needs them.

Runs that are ok, and those that still run, are never touched; nor is `reference/`, the published tables of a release.
"""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import uuid
from pathlib import Path

from nestlab.errors import UserError
from nestlab.results import manifest
from nestlab.results.store import list_runs, load

NO_RESULT = ("failed", "killed", "timeout")
KEPT_FOLDER = "reference"
_REMOVED = ".removed-"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A run that may go."""

    path: Path
    run_id: str
    experiment: str
    status: str
    age_days: float


def candidates(
    results_dir: str | Path = "results", *, older_than_days: float = 7, keep: int = 0, experiment: str | None = None
) -> list[Candidate]:
    """The runs that `remove` would take, oldest first.

    Args:
        older_than_days: younger ones stay.
        keep: the newest so many of each experiment's failed, killed or timed-out runs stay whatever their age.
        experiment: only of this one.
    """
    if older_than_days < 0 or keep < 0:
        raise UserError("prune: days and the number of runs to keep must be 0 or more")
    found: dict[str, list[Candidate]] = {}
    for row in list_runs(results_dir).to_dict("records"):
        place = Path(row["path"])
        if place.parent.name == KEPT_FOLDER or place.is_symlink() or place.parent.is_symlink() or not _is_no_result(place):
            continue
        if experiment in (None, row["experiment"]):
            age = _age_days(row["start"], place)
            found.setdefault(row["experiment"], []).append(
                Candidate(place, row["run_id"], row["experiment"], row["status"], age)
            )
    newest_first = (sorted(runs, key=lambda run: run.age_days) for runs in found.values())
    going = [run for runs in newest_first for run in runs[keep:] if run.age_days >= older_than_days]
    return sorted(going, key=lambda run: -run.age_days)


def remove(results_dir: str | Path, chosen: list[Candidate]) -> list[Candidate]:
    """Removes runs and returns those that went: one that has become another in the meantime stays.

    A run disappears in one step, by a new name that no listing reads, before its files are deleted; what an interrupted
    removal leaves, the next one takes.
    """
    root = Path(results_dir)
    gone = []
    for run in chosen:
        if not _is_no_result(run.path):
            continue
        try:
            run.path.rename(root / f"{_REMOVED}{uuid.uuid4().hex}")
        except FileNotFoundError:
            continue  # somebody else was quicker
        except OSError as error:
            raise UserError(f"run {run.run_id} cannot be removed: {error.strerror}") from None
        gone.append(run)
    for leftover in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return gone


def _is_no_result(folder: Path) -> bool:
    """Only what its own manifest says: one that cannot be read, or has a status from elsewhere, may be a result."""
    try:
        return load(folder).manifest.get("status") in NO_RESULT
    except UserError:
        return False


def _age_days(start: str | None, folder: Path) -> float:
    """Since the run began; a manifest that does not say it is as old as its folder."""
    try:
        began = datetime.datetime.fromisoformat(str(start))
        return (manifest.now() - began).total_seconds() / 86400
    except (ValueError, TypeError):
        return (manifest.now().timestamp() - folder.stat().st_mtime) / 86400
