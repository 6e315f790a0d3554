"""Key figures over time: one line for each experiment, data set and setting, since others do not compare."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from nestlab.results.page.sparkline import sparkline
from nestlab.results.page.views import RunView, number, shown
from nestlab.results.selection import settled

_Key = tuple[str, str, str, str, str, str]
_NO_SETTING = ("seed", "results", "data_root")


def section(results_dir: Path, runs: list[RunView]) -> tuple[str, str] | None:
    series: dict[_Key, list[RunView]] = {}
    for run in reversed(runs):  # oldest first
        if run.status == "ok" and any(number(value) is not None for value in run.summary.values()):
            series.setdefault(_key(run), []).append(run)
    if not series:
        return None
    ordered = [members for _, members in sorted(series.items())]
    return "Key figures over time", "\n".join(_series(members, _varied(members[0], ordered)) for members in ordered)


def _key(run: RunView) -> _Key:
    scale = str(run.params.get("scale") or "")
    fingerprint, settings = str(run.dataset.get("fingerprint") or ""), _settings(run)
    return run.experiment, run.data_title, fingerprint, scale, run.how, json.dumps(settings, sort_keys=True, default=str)


def _settings(run: RunView) -> dict[str, object]:
    return {name: value for name, value in settled(run.params).items() if name not in _NO_SETTING}


def _varied(run: RunView, series: list[list[RunView]]) -> list[str]:
    """The run's settings, as text, by which the courses of its experiment on its data differ."""
    others = [s[0] for s in series if s[0].experiment == run.experiment and s[0].data_title == run.data_title]
    mine = _settings(run)
    names = [name for name in mine if any(_settings(other).get(name) != mine[name] for other in others)]
    return [f"{name} {mine[name]}" for name in names if name != "scale"]


def _series(runs: list[RunView], varied: list[str]) -> str:
    experiment, data, _, scale, how, _ = _key(runs[0])
    words = [f"scale {scale}" if scale else "", *varied, how, _count(len(runs))]
    words = [escape(part) for part in words if part]
    names = dict.fromkeys(name for run in runs for name in run.summary)
    tiles = "".join(_tile(name, runs) for name in names)
    return (
        f'<div class="series" data-experiment="{escape(experiment)}" data-status="ok">'
        f'<h3>{escape(experiment)} <span class="data {runs[0].data_kind}">{escape(data)}</span></h3>'
        f'<p class="quiet">{" · ".join(words)}</p><div class="tiles">{tiles}</div></div>'
    )


def _tile(name: str, runs: list[RunView]) -> str:
    values = [value for run in runs if (value := number(run.summary.get(name))) is not None]
    if not values:
        return ""
    course = f"{name}: {shown(name, values[0])} → {shown(name, values[-1])} over {_count(len(values))}"
    broken = escape(name).replace("_", "_<wbr>")  # a long name breaks between its words
    picture = sparkline(values, course if len(values) > 1 else f"{name}: {shown(name, values[0])}")
    return f'<div class="tile"><span>{broken}</span><b>{escape(shown(name, values[-1]))}</b>{picture}</div>'


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
