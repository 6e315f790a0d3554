"""Which runs may stand side by side: the same data, read alike, split alike, judged alike, and all of them finished.

Of a sequence model the convention says what a sample is (events, users, split, history, negatives), and the protocol
how its ranking is judged (`RankingProtocol.facts`: full or sampled, seen items kept or left out, k, ties).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nestlab.errors import UserError
from nestlab.results.store import LoadedRun

# Parameters that say how a key figure is taken. They are no settings: with another value it is another figure.
PROTOCOL_PARAMS = ("split", "protocol", "convention", "ranking", "negatives", "ks", "leave_out_seen", "sampled")
# Negatives are drawn anew for every replicate: their seed is the run's, and says nothing of the protocol.
# Where a run's files lie says nothing of what was computed: the data's fingerprint is compared instead.
NO_SETTING = ("seed", "results", "data_root")
_TELLING = ("model", "scale")  # other parameters follow from them: of several that would do, a reader knows these
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
            hint = _hint(runs, run, what, read)
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


def _hint(runs: Sequence[LoadedRun], other: LoadedRun, what: str, read: Any) -> str:
    """What would make them comparable, where it can be told."""
    if what == "experiment":
        return f"; choose one, say with --experiment {_usual([read(run.manifest) for run in runs])}"
    ids = [_data(run.manifest)[0] for run in runs]
    if what == "data" and ids[0] != _data(other.manifest)[0]:
        return f"; choose one, say with --where dataset={_usual([name for name in ids if name])}"
    synthetic = what == "data" and (other.manifest.get("dataset") or {}).get("kind") == "synthetic"
    note = " (of a twin, rows and data_seed must be equal)" if synthetic else ""
    name = _separating(runs, other, read)
    if name is None:
        return f"{note}; no parameter tells them apart: name those that belong together"
    return f"{note}; choose one, say with --where {name}={_usual([_params(run).get(name) for run in runs])}"


def _separating(runs: Sequence[LoadedRun], other: LoadedRun, read: Any) -> str | None:
    """A parameter in which the first run and the other differ: one whose every value has one fact, if there is one,
    and of these one that a reader knows, or else the one with fewest values."""
    first, second = _params(runs[0]), _params(other)
    names = [name for name in {**first, **second} if name not in NO_SETTING and first.get(name) != second.get(name)]
    facts = [_text(read(run.manifest)) for run in runs]

    def rank(name: str) -> tuple[bool, bool, int]:
        values = [_text(_params(run).get(name)) for run in runs]
        undecided = len(set(values)) < len(set(zip(values, facts, strict=True)))
        return undecided, name not in _TELLING, len(set(values))

    return min(names, key=rank, default=None)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _usual(values: Sequence[Any]) -> str:
    """The most frequent of some values, as a command line takes it: what leaves most runs to compare."""
    return str(Counter(map(str, values)).most_common(1)[0][0])


def _params(run: LoadedRun) -> Mapping[str, Any]:
    return run.manifest.get("params") or {}
