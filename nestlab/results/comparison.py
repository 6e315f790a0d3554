"""Runs side by side: seeds are replicates, what else differs is a setting, and every figure has its interval.

    nestlab results compare --experiment quickstart --where scale=quick --by lr

Runs are grouped by the parameters in which they differ. A group is a setting, the seeds in it its replicates. Each
numeric key figure gets mean, standard deviation, number of seeds and a 95 % interval; each setting after the first the
difference to the first, seed by seed where both have run the same seeds. The first, the base, is the plain one, without
techniques, where there is one, and else the oldest.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.results import comparable, intervals
from nestlab.results.selection import PLAIN, TECHNIQUES, Selection, params_of
from nestlab.results.store import LoadedRun

if TYPE_CHECKING:
    import pandas

_NO_SETTING = {*comparable.NO_SETTING, *comparable.PROTOCOL_PARAMS}
NONE_DIFFERS = "all runs"
STATISTICS = ("metric", "n", "mean", "sd", "low", "high", "difference", "diff_low", "diff_high", "pairing")


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of the runs.

    Attributes:
        metrics: names of key figures; all numeric ones if empty.
        by: parameters that tell settings apart; those that differ if empty.
        method: `t` or `bootstrap`.
    """

    metrics: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    method: str = "t"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        table: a row for each key figure and setting: metric, the settings' parameters, n, mean, sd, low, high, and
            against the first setting difference, diff_low, diff_high, pairing. NaN where there is none.
        caption: the experiment, the data (SYNTHETIC where that is so) and how the figures were obtained.
        notes: what a reader has to know: single seeds, runs left out, machines or versions that differ.
        parameters: the names of the columns that tell settings apart.
        base: in words, the setting that differences are to; empty where there is one setting only.
    """

    table: pandas.DataFrame
    caption: str
    notes: tuple[str, ...]
    parameters: tuple[str, ...]
    base: str = ""


def compare(runs: Sequence[LoadedRun], question: Question | None = None, chosen: Selection | None = None) -> Comparison:
    """Compares runs of one experiment. `chosen`: what they were selected by, so that an error tells what to change.

    Raises:
        UserError: fewer than two runs, runs that do not compare, or a name that they do not have.
    """
    import pandas

    question = question or Question()
    if question.method not in intervals.METHODS:
        raise UserError(f"interval '{question.method}': choose one of {', '.join(intervals.METHODS)}")
    if len(runs) < 2:
        raise UserError(_too_few(runs, chosen))
    comparable.check(runs)
    parameters = _parameters(runs, question.by)
    groups, left_out = _grouped(runs, parameters)
    metrics = _metrics(runs, question.metrics)
    rows = [row for name in metrics for row in _rows(name, groups, question.method)]
    # A parameter may have the name of a statistic.
    settings = [f"{name} (parameter)" if name in STATISTICS else name for name in parameters] or ["setting"]
    frame = pandas.DataFrame(rows, columns=["metric", *settings, *STATISTICS[1:]])
    return Comparison(frame, caption(runs), tuple(_notes(runs, groups, left_out)), tuple(parameters), _base(groups))


def _too_few(runs: Sequence[LoadedRun], chosen: Selection | None) -> str:
    found = "is one" if runs else "are none"
    again = "nestlab run … -p seed=1"
    if runs and runs[0].manifest.get("experiment") == "train":
        again = "nestlab train … --seed 1"
    wider = (
        ", or take a --where away" if chosen and chosen.where else ", or name more" if chosen and chosen.names else ""
    )
    return (
        f"a comparison takes at least two runs: there {found} that fits; run again with another seed or setting "
        f"({again}){wider}"
    )


def caption(runs: Sequence[LoadedRun]) -> str:
    """What a table's caption says of where its figures come from."""
    content = runs[0].manifest
    dataset = content.get("dataset") or {}
    title = str(dataset.get("title") or dataset.get("id") or "data set not recorded")
    if dataset.get("kind") == "synthetic" and "synthetic" not in title.lower():
        title += " (SYNTHETIC)"
    how = ", ".join(dict.fromkeys(str(run.manifest.get("how") or "how obtained: not stated") for run in runs))
    return f"{content.get('experiment')} · {title} · {how}"


Setting = dict[str, Any]
Group = tuple[Setting, dict[int, LoadedRun]]


def _parameters(runs: Sequence[LoadedRun], by: tuple[str, ...]) -> list[str]:
    """The parameters that tell settings apart. `how` is always one: a simulated time is no replicate of a clock's."""
    values = [_values(run) for run in runs]
    names = list(dict.fromkeys(name for one in values for name in one if name not in _NO_SETTING))
    differing = [name for name in names if len({_text(one.get(name)) for one in values}) > 1]
    for wanted in by:
        if wanted not in names:
            raise UserError(f"no parameter '{wanted}' to compare by: the runs differ in {_listed(differing)}")
    if not by:
        return differing
    # What follows from the chosen ones (a batch size from a scale) is no setting of its own.
    settings = [_text([one.get(name) for name in by]) for one in values]
    hidden = [name for name in differing if name not in by and not _follows([v.get(name) for v in values], settings)]
    if hidden:
        more = " ".join(f"--by {name}" for name in hidden)
        raise UserError(f"the runs also differ in {_listed(hidden)}: add {more}, or choose runs with --where")
    return list(by)


def _follows(values: Sequence[Any], settings: Sequence[str]) -> bool:
    """Whether a parameter has one value within each setting."""
    pairs = {(setting, _text(value)) for setting, value in zip(settings, values, strict=True)}
    return len(pairs) == len(set(settings))


def _grouped(runs: Sequence[LoadedRun], parameters: list[str]) -> tuple[list[Group], int]:
    """Settings, the base first and the others in the order of their first run, each with its newest run a seed; and
    how many older ones that leaves.

    The same seed twice is the same experiment twice: counting both would make an interval narrower than it is.
    """
    groups: dict[str, Group] = {}
    for run in sorted(runs, key=lambda run: str(run.manifest.get("start"))):
        values = _values(run)
        setting = {name: values.get(name) for name in parameters} or {"setting": NONE_DIFFERS}
        _, members = groups.setdefault(_text(setting), (setting, {}))
        members[run.manifest.get("seed")] = run
    kept = sum(len(members) for _, members in groups.values())
    return sorted(groups.values(), key=lambda group: not _plain(group)), len(runs) - kept


def _plain(group: Group) -> bool:
    """Whether its runs are without techniques."""
    return all(params_of(run).get(TECHNIQUES) == PLAIN for run in group[1].values())


def _base(groups: list[Group]) -> str:
    """In words, which setting the others are compared with, and why it."""
    if len(groups) < 2:
        return ""
    told = ", ".join(f"{name}={value}" for name, value in groups[0][0].items())
    plain = [group for group in groups if _plain(group)]
    kind = (
        "the plain one" if len(plain) == 1 else "the oldest plain one" if 0 < len(plain) < len(groups) else "the oldest"
    )
    return f"{told} ({kind})"


def _metrics(runs: Sequence[LoadedRun], wanted: tuple[str, ...]) -> list[str]:
    names = list(dict.fromkeys(name for run in runs for name in (run.manifest.get("summary") or {})))
    numeric = [name for name in names if any(_number(run, name) is not None for run in runs)]
    for name in wanted:
        if name not in numeric:
            raise UserError(f"no numeric key figure '{name}': there is {_listed(numeric)}")
    if not numeric:
        raise UserError("these runs have no numeric key figures")
    return list(wanted) or numeric


def _rows(metric: str, groups: list[Group], method: str) -> list[list[Any]]:
    found = statistics([_by_seed(metric, members) for _, members in groups], method)
    return [[metric, *setting.values(), *row] for (setting, _), row in zip(groups, found, strict=True)]


def statistics(by_seed: Sequence[dict[int, float]], method: str = "t") -> list[list[Any]]:
    """Of one key figure, given by seed for each setting: a row a setting, with STATISTICS after the name of the metric.

    The first setting is what the others are compared with: its own row has no difference.
    """
    rows = []
    for number, values in enumerate(by_seed):
        own = intervals.of_mean(list(values.values()), method)
        row = [own.n, own.mean, own.sd, own.low, own.high]
        if number == 0:
            rows.append([*row, math.nan, math.nan, math.nan, ""])
            continue
        against = intervals.of_difference(by_seed[0], values, method)
        rows.append([*row, against.mean, against.low, against.high, _pairing(against)])
    return rows


def _pairing(against: intervals.Estimate) -> str:
    return f"paired, {against.n} seeds" if against.kind == "paired" else against.kind


def _by_seed(metric: str, members: dict[int, LoadedRun]) -> dict[int, float]:
    found = {seed: _number(run, metric) for seed, run in members.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _notes(runs: Sequence[LoadedRun], groups: list[Group], left_out: int) -> list[str]:
    notes = []
    if alone := sum(len(members) == 1 for _, members in groups):
        which = "every setting" if alone == len(groups) else f"{alone} of {len(groups)} settings"
        notes.append(f"{which} has one seed only: no interval")
    if left_out:
        notes.append(f"older runs of the same setting and seed left out: {left_out}")
    differing = [name for name, read in _CIRCUMSTANCES.items() if len({_text(read(run.manifest)) for run in runs}) > 1]
    if differing:
        notes.append(f"the runs also differ in {_listed(differing)}")
    return notes


# What may explain a difference without being a setting.
_CIRCUMSTANCES = {
    "commit": lambda content: (content.get("commit") or {}).get("sha"),
    "package versions": lambda content: content.get("packages"),
    "processor": lambda content: (content.get("cpu"), content.get("cores")),
    "accelerator": lambda content: content.get("accelerator"),
    "thread settings": lambda content: content.get("threads"),
}


def _values(run: LoadedRun) -> dict[str, Any]:
    return params_of(run) | {"how": run.manifest.get("how")}


def _number(run: LoadedRun, name: str) -> float | None:
    value = (run.manifest.get("summary") or {}).get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
