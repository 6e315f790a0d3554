"""Which runs may stand side by side: the same data, read alike, split alike, judged alike, and all of them finished.

Of a sequence model the convention says what a sample is (events, users, split, history, negatives), and the protocol
how its ranking is judged (`RankingProtocol.facts`: full or sampled, seen items kept or left out, k, ties).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nestlab.errors import UserError
from nestlab.results.selection import fits, params_of, values
from nestlab.results.store import LoadedRun

# Parameters that say how a key figure is taken. They are no settings: with another value it is another figure.
PROTOCOL_PARAMS = ("split", "protocol", "convention", "ranking", "negatives", "ks", "leave_out_seen", "sampled")
# Negatives are drawn anew for every replicate: their seed is the run's, and says nothing of the protocol.
# Where a run's files lie says nothing of what was computed: the data's fingerprint is compared instead.
NO_SETTING = ("seed", "results", "data_root")
# Other parameters follow from them: of several that would do, a reader knows these.
_TELLING = ("experiment", "dataset", "model", "scale")
_GROUPS = 3  # so many are told
_SEED_OF_NEGATIVES = re.compile(r"(?<= negatives), seed \d+")


def check(runs: Sequence[LoadedRun]) -> None:
    """Refuses runs that do not compare.

    Raises:
        UserError: one has not ended well, or two differ in data, convention, split or protocol; which, how, and what
            to choose by.
    """
    for run in runs:
        status = run.manifest.get("status")
        if status != "ok":
            reason = run.manifest.get("exception")
            raise UserError(f"run {run.id} is no result: {status}{f' ({reason})' if reason else ''}; leave it out")
    for what, read in _FACTS:
        _same(runs, what, read)


def _same(runs: Sequence[LoadedRun], what: str, read: Any) -> None:
    first = read(runs[0].manifest)
    for run in runs[1:]:
        other = read(run.manifest)
        if other != first:
            told = f"{runs[0].id} has {_shown(first)}, {run.id} has {_shown(other)}"
            hint = _hint(runs, run, what)
            raise UserError(f"these runs do not compare: their {what} differs: {told}{hint}")


def _data(content: Mapping[str, Any]) -> tuple[Any, Any]:
    dataset = content.get("dataset") or {}
    return dataset.get("id"), dataset.get("fingerprint")


def _of_dataset(name: str) -> Any:
    return lambda content: (content.get("dataset") or {}).get(name)


def _convention(content: Mapping[str, Any]) -> str | None:
    stated = _of_dataset("convention")(content)
    return None if stated is None else _SEED_OF_NEGATIVES.sub("", stated)


def _protocol(content: Mapping[str, Any]) -> dict[str, Any]:
    params = content.get("params") or {}
    return (content.get("protocol") or {}) | {name: params[name] for name in PROTOCOL_PARAMS if name in params}


_FACTS = (
    ("experiment", lambda content: content.get("experiment")),
    ("data", _data),
    ("data's convention", _convention),
    ("split", _of_dataset("split")),
    ("protocol", _protocol),
)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):  # a name and a fingerprint
        name, fingerprint = value
        return "no data set recorded" if name is None else f"{name} {str(fingerprint)[:12]}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "none stated"
    return "none stated" if value is None else str(value)


def _hint(runs: Sequence[LoadedRun], other: LoadedRun, what: str) -> str:
    """Which of them compare with each other, and how to choose these; of a twin what has to be equal beside."""
    ids = [_data(run.manifest)[0] for run in (runs[0], other)]
    synthetic = what == "data" and ids[0] == ids[1] and _of_dataset("kind")(other.manifest) == "synthetic"
    note = " (of a twin, rows and data_seed must be equal)" if synthetic else ""
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(_text([read(run.manifest) for _, read in _FACTS]), []).append(run)
    several = sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)[:_GROUPS]
    if not several:
        return f"{note}; no two of these {len(runs)} compare: run one of them with another seed or setting"
    return f"{note}; what compares with each other: {', or '.join(_chosen(group, runs) for group in several)}"


def _chosen(group: Sequence[LoadedRun], runs: Sequence[LoadedRun]) -> str:
    """The options that leave this group of the runs; its names where no parameters do.

    Each step takes the parameter that leaves fewest others: of equal ones one that a reader knows, then the one with
    fewest values.
    """
    others = [run for run in runs if run not in group]
    names = list(dict.fromkeys(["experiment", "dataset", *(name for run in group for name in params_of(run))]))
    choices = {name: _values(group, name) for name in names if name not in NO_SETTING}
    words: list[str] = []
    while others:
        left = {name: [run for run in others if _fits(run, name, texts)] for name, texts in choices.items()}
        best = min(left, key=lambda name: (len(left[name]), name not in _TELLING, len(choices[name])))
        if len(left[best]) == len(others):
            return f"no parameter tells them apart, name them: {' '.join(run.id for run in group)}"
        option = ("--experiment {1}" if best == "experiment" else "--where {0}={1}").format
        words += [option(best, shlex.quote(text)) for text in choices[best]]
        others = left[best]
    return " ".join(words)


def _values(runs: Sequence[LoadedRun], name: str) -> list[str]:
    """The values that runs have, as a command line takes them; of the data what was read, where that is known."""
    read = (run.manifest.get("experiment") if name == "experiment" else values(run, name)[-1] for run in runs)
    return list(dict.fromkeys(map(str, read)))


def _fits(run: LoadedRun, name: str, texts: Sequence[str]) -> bool:
    return str(run.manifest.get("experiment")) in texts if name == "experiment" else fits(run, name, texts)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
