"""Choosing runs: by name, or by experiment and parameters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nestlab.errors import UserError
from nestlab.results.store import LoadedRun, list_runs, load

TECHNIQUES, PLAIN = "techniques", "plain"  # a parameter, and its value where there are none; written as nothing too


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which runs are meant.

    Attributes:
        names: runs by name, each of them wanted; if empty, all ok runs that fit the rest.
        experiment: the experiment; may be left out where all runs that fit are of one.
        where: values of parameters, as text; of several values either. `dataset` takes the id of the data that were
            read as well, since a parameter may name several (`kuairand`: whichever is there).
    """

    names: tuple[str, ...] = ()
    experiment: str | None = None
    where: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)


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
    if selection.experiment is not None:
        frame = frame[frame["experiment"] == selection.experiment]
    of = "" if selection.experiment is None else f" of experiment '{selection.experiment}'"
    found = [load(path) for path in frame["path"]]
    if not found:
        raise UserError(f"no finished run{of or 's'} in {results_dir}")
    for name, value in selection.where.items():
        found = _having(name, (value,) if isinstance(value, str) else tuple(value), found, of)
    _of_one_experiment(found)
    return found


def values(run: LoadedRun, name: str) -> list[Any]:
    """Of a parameter the value, of `dataset` the id of what was read too."""
    read = (run.manifest.get("dataset") or {}).get("id") if name == "dataset" else None
    given = params_of(run).get(name)
    return [given] if read is None else [read] if given is None else [given, read]


def fits(run: LoadedRun, name: str, texts: Sequence[str]) -> bool:
    """Whether a run has one of the values of a parameter."""
    wanted = [settled({name: text})[name] for text in texts]
    return any(_matches(value, text) for value in values(run, name) for text in wanted)


def _having(name: str, texts: Sequence[str], runs: Sequence[LoadedRun], of: str) -> list[LoadedRun]:
    _known(name, runs)
    found = [run for run in runs if fits(run, name, texts)]
    if not found:
        there = dict.fromkeys(str(value) for run in runs for value in values(run, name))
        raise UserError(f"no finished run{of} has {name}={' or '.join(texts)}: there is {', '.join(there)}")
    return found


def _of_one_experiment(runs: Sequence[LoadedRun]) -> None:
    counts = Counter(str(run.manifest.get("experiment")) for run in runs)
    if len(counts) > 1:
        told = (f"{name} ({count} run{'s' if count > 1 else ''})" for name, count in sorted(counts.items()))
        raise UserError(f"which experiment? --experiment takes one of {', '.join(told)}")


def _known(name: str, runs: Sequence[LoadedRun]) -> None:
    names = list(dict.fromkeys([*(known for run in runs for known in params_of(run)), "dataset"]))
    if name not in names:
        raise UserError(f"no run has a parameter '{name}': there is {', '.join(names) or 'none'}")


def params_of(run: LoadedRun) -> dict[str, Any]:
    """What a run was made with, one value a setting."""
    return settled(run.manifest.get("params") or {})


def settled(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with techniques by one text a setting: nothing and `plain` are the same."""
    return {name: _techniques(value) if name == TECHNIQUES else value for name, value in params.items()}


def _techniques(value: Any) -> Any:
    return PLAIN if value == "" else value


def _matches(value: Any, text: str) -> bool:
    """Text from a command line against a value: `0.10` is 0.1, and `false` is False."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value).lower() == text.lower()
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text
