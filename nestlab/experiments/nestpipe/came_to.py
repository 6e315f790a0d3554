"""What the emulated links came to: transfers of the plain step over its computation, against what was asked for."""

from __future__ import annotations

import pandas as pd

from nestlab.experiments.nestpipe.ablation import by_case
from nestlab.experiments.nestpipe.cases import NONE
from nestlab.experiments.nestpipe.judging import exchange_ms
from nestlab.experiments.nestpipe.links import EMULATED, linked
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.experiments.tables import share

_HOST = "retrieval with write-back"


def links_came_to(frame: pd.DataFrame, settings: Settings) -> str:
    """What exchange, and retrieval with write-back, of the plain step took under the links, over its computation,
    against what was asked for; and where it is off by more than a third, why."""
    if frame.empty or not (frame["setting"] == EMULATED).any():
        return ""
    row = linked(by_case(frame)).loc[NONE]
    compute, seen = row["compute_ms"], row["calibrated_compute_ms"]
    host = row["prepare_ms"] + row["writeback_ms"]
    parts = [("exchange", exchange_ms(row), settings.exchange), (_HOST, host, settings.retrieval)]
    parts = parts if row["full_bytes"] > 0 else parts[1:]  # one rank alone exchanges nothing
    came = " and ".join(f"{name} {share(ms / compute)} (asked for: {asked:.0%})" for name, ms, asked in parts)
    text = f"Under the links the plain step came to, of its computation of {compute:.3g} ms: {came}."
    off = [(name, ms, asked) for name, ms, asked in parts if abs(ms / compute / asked - 1) > 1 / 3]
    if not off:
        return text
    return (
        f"{text} **The calibration missed for {' and '.join(name for name, *_ in off)}**: {_why(off, compute, seen)}."
    )


def _why(off: list[tuple[str, float, float]], compute: float, seen: float) -> str:
    """Of a miss: computation that changed since, transfers that cost more than their links."""
    reasons = []
    if abs(compute / seen - 1) > 0.2:
        word = "slower" if compute > seen else "quicker"
        reasons.append(f"computation was {word} than when the links were set ({seen:.3g} ms), by load on this machine")
    for name, ms, asked in off:
        if ms > asked * seen * 4 / 3:
            reasons.append(
                f"{name} took {ms:.3g} ms, its link alone {asked * seen:.3g} ms; the rest is waiting for the other "
                "rank and for cores, which weighs the more, the less is computed"
            )
    return "; ".join(reasons) or "by load on this machine"
