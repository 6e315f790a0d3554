"""Two traces side by side: time, exposed time and bytes of every stage, a step, and the steps' durations."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from nestlab.tracing.exposed import exposed_ns
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, Trace

MEASURES = ("time_ms", "exposed_ms", "bytes")


def diff(a: Trace, b: Trace, compute_lane: str = COMPUTE) -> dict[str, Any]:
    """JSON values: `steps` of each, `stages` (a row a stage and measure), `ranks` (how many), `warnings`.

    Of each trace its steady part is taken; figures are means over the steps of all ranks. `ratio` is b over a, None
    where a is 0.
    """
    first, second = a.steady(compute_lane), b.steady(compute_lane)
    nothing = dict.fromkeys(MEASURES, 0.0)  # for a stage that only the other one has
    figures = _stages(first, compute_lane), _stages(second, compute_lane)
    return {
        "steps": {"a": _steps(a, compute_lane), "b": _steps(b, compute_lane)},
        "stages": [
            {"stage": stage, "measure": measure, **_compared(*(f.get(stage, nothing)[measure] for f in figures))}
            for stage in _in_order(a, b, figures)
            for measure in MEASURES
        ],
        "ranks": {"a": len(a.ranks), "b": len(b.ranks)},
        "warnings": [*_other_ranks(a, b), *warnings(a.meta, b.meta)],
    }


def _other_ranks(a: Trace, b: Trace) -> list[str]:
    same = len(a.ranks) == len(b.ranks)
    return [] if same else [f"the numbers of ranks differ: {len(a.ranks)} | {len(b.ranks)}"]


def warnings(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What makes the two incomparable, or comparable only with care."""
    named = {"dataset": "the data sets differ", "schedule": "the schedules differ", "how": "obtained differently"}
    return [f"{text}: {a.get(key)} | {b.get(key)}" for key, text in named.items() if a.get(key) != b.get(key)]


def _in_order(a: Trace, b: Trace, figures: tuple[dict, dict]) -> list[str]:
    """The stages that have figures, in the order in which a run begins them."""
    begun = dict.fromkeys(event.stage for trace in (a, b) for event in trace.events)
    return [stage for stage in dict.fromkeys([*begun, *figures[0], *figures[1]]) if any(stage in f for f in figures)]


def _stages(trace: Trace, lane: str) -> dict[str, dict[str, float]]:
    steps = max(1, sum(len(trace.step_spans(rank, lane)) for rank in trace.ranks))
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(MEASURES, 0))
    for event in trace.events:
        sums[event.stage]["time_ms"] += event.duration_ns
        sums[event.stage]["bytes"] += event.nbytes
    for (_, stage), ns in exposed_ns(trace, lane).items():
        sums[stage]["exposed_ms"] += ns
    unit = {"time_ms": NS_PER_MS, "exposed_ms": NS_PER_MS, "bytes": 1}
    return {stage: {name: row[name] / unit[name] / steps for name in MEASURES} for stage, row in sums.items()}


def _compared(a: float, b: float) -> dict[str, float | None]:
    return {"a": a, "b": b, "difference": b - a, "ratio": b / a if a else None}


def _steps(trace: Trace, lane: str) -> dict[str, float]:
    """Without the first step of each rank, whose begin is not known, where there are others."""
    spans = [steps[1:] or steps for steps in (trace.step_spans(rank, lane) for rank in trace.ranks)]
    durations = [(step.end_ns - step.start_ns) / NS_PER_MS for steps in spans for step in steps] or [0.0]
    low, middle, high = np.percentile(durations, [10, 50, 90]).tolist()
    return {"steps": len(durations), "median_ms": middle, "p10_ms": low, "p90_ms": high}
