"""Which runs may stand side by side: the same data, read alike, split alike, judged alike, and all of them finished.

Of a sequence model the convention says what a sample is (events, users, split, history, negatives), and the protocol
how its ranking is judged (`RankingProtocol.facts`: full or sampled, seen items kept or left out, k, ties).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nestlab.errors import UserError
from nestlab.results.store import LoadedRun

# Parameters that say how a key figure is taken. They are no settings: with another value it is another figure.
PROTOCOL_PARAMS = ("split", "protocol", "convention", "ranking", "negatives", "ks", "leave_out_seen", "sampled")
# Negatives are drawn anew for every replicate: their seed is the run's, and says nothing of the protocol.
_SEED_OF_NEGATIVES = re.compile(r"(?<= negatives), seed \d+")


def check(runs: Sequence[LoadedRun]) -> None:
    """Refuses runs that do not compare.

    Raises:
        UserError: one has not ended well, or two differ in data, convention, split or protocol; which and how.
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
            raise UserError(f"these runs do not compare: their {what} differs: {told}{_hint(runs[0], run, what)}")


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


def _hint(one: LoadedRun, other: LoadedRun, what: str) -> str:
    """What would make them comparable, where it can be told."""
    if what != "data":
        return ""
    if _data(one.manifest)[0] != _data(other.manifest)[0]:
        return "; choose one, say with --where dataset=NAME"
    synthetic = (one.manifest.get("dataset") or {}).get("kind") == "synthetic"
    return " (of a twin, rows and data_seed must be equal)" if synthetic else ""
