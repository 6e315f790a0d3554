"""Choosing runs: by name, or by experiment and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nestlab.errors import UserError
from nestlab.results.store import LoadedRun, list_runs, load


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which runs are meant.

    Attributes:
        names: runs by name, each of them wanted; if empty, all ok runs that fit the rest.
        experiment: the experiment; may be left out where all runs are of one.
        where: values of parameters, as text; `dataset` takes the id of the data that were read as well, since a
            parameter may name several (`kuairand`: whichever is there).
    """

    names: tuple[str, ...] = ()
    experiment: str | None = None
    where: Mapping[str, str] = dataclasses.field(default_factory=dict)


def select(selection: Selection, results_dir: str | Path = "results") -> list[LoadedRun]:
    """The runs, oldest first.

    Raises:
        UserError: a name that is not there, no experiment named where there are several, or a parameter no run has.
    """
    if selection.names:
        if selection.experiment or selection.where:
            raise UserError("name runs, or choose them by --experiment and --where: not both")
        runs = {run.path: run for run in (load(name, results_dir) for name in selection.names)}
        return sorted(runs.values(), key=lambda run: str(run.manifest.get("start")))
    frame = list_runs(results_dir)
    frame = frame[frame["status"] == "ok"]
    experiment = selection.experiment or _only(sorted(set(frame["experiment"])), results_dir)
    found = [load(path) for path in frame["path"][frame["experiment"] == experiment]]
    if not found:
        raise UserError(f"no finished run of experiment '{experiment}' in {results_dir}")
    for name, value in selection.where.items():
        found = _having(name, value, found, experiment)
    return found


def _having(name: str, text: str, runs: Sequence[LoadedRun], experiment: str) -> list[LoadedRun]:
    _known(name, runs)
    found = [run for run in runs if any(_matches(value, text) for value in _values(run, name))]
    if not found:
        there = dict.fromkeys(str(value) for run in runs for value in _values(run, name))
        raise UserError(f"no finished run of experiment '{experiment}' has {name}={text}: there is {', '.join(there)}")
    return found


def _values(run: LoadedRun, name: str) -> list[Any]:
    """Of a parameter the value, of `dataset` the id of what was read too."""
    read = (run.manifest.get("dataset") or {}).get("id") if name == "dataset" else None
    given = _params(run).get(name)
    return [given] if read is None else [read] if given is None else [given, read]


def _only(experiments: Sequence[str], results_dir: str | Path) -> str:
    if not experiments:
        raise UserError(f"no finished runs in {results_dir}")
    if len(experiments) > 1:
        raise UserError(f"which experiment? --experiment takes one of {', '.join(experiments)}")
    return experiments[0]


def _known(name: str, runs: Sequence[LoadedRun]) -> None:
    names = list(dict.fromkeys([*(known for run in runs for known in _params(run)), "dataset"]))
    if name not in names:
        raise UserError(f"no run has a parameter '{name}': there is {', '.join(names) or 'none'}")


def _params(run: LoadedRun) -> dict[str, Any]:
    return run.manifest.get("params") or {}


def _matches(value: Any, text: str) -> bool:
    """Text from a command line against a value: `0.10` is 0.1, and `false` is False."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value).lower() == text.lower()
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text
