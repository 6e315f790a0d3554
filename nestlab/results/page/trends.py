"""Key figures over time: one line for each experiment, data set and scale, since others do not compare."""

from __future__ import annotations

from html import escape
from pathlib import Path

from nestlab.results.page.sparkline import sparkline
from nestlab.results.page.views import RunView, number, shown

_Key = tuple[str, str, str, str, str]


def section(results_dir: Path, runs: list[RunView]) -> tuple[str, str] | None:
    series: dict[_Key, list[RunView]] = {}
    for run in reversed(runs):  # oldest first
        if run.status == "ok" and any(number(value) is not None for value in run.summary.values()):
            series.setdefault(_key(run), []).append(run)
    if not series:
        return None
    return "Key figures over time", "\n".join(_series(key, members) for key, members in sorted(series.items()))


def _key(run: RunView) -> _Key:
    scale = str(run.params.get("scale") or "")
    return run.experiment, run.data_title, str(run.dataset.get("fingerprint") or ""), scale, run.how


def _series(key: _Key, runs: list[RunView]) -> str:
    experiment, data, _, scale, how = key
    words = [escape(part) for part in (f"scale {scale}" if scale else "", how, _count(len(runs))) if part]
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
