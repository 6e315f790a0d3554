"""Frames as the parts need them: the median round, and sentences that a notebook shows as text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.experiments.nestpipe.links import EMULATED, LOOPBACK


class Said(str):
    """A text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


def medians(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row a group, in the order of first appearance: the round whose step is the median one (of an even number the
    quicker of the middle two), so that its parts sum to its step; what is true or false must hold in every round;
    `step_ms_low` and `step_ms_high`: the quickest and the slowest round."""
    rows = []
    for _, rounds in frame.groupby(by, sort=False):
        ordered = rounds.sort_values("step_ms", kind="stable")
        row = ordered.iloc[(len(ordered) - 1) // 2].to_dict()
        row |= {name: _all(rounds[name]) for name in frame.columns if _holds_truth(frame[name])}
        rows.append(row | {"step_ms_low": ordered["step_ms"].iloc[0], "step_ms_high": ordered["step_ms"].iloc[-1]})
    return pd.DataFrame(rows).drop(columns="round", errors="ignore")


def _holds_truth(column: pd.Series) -> bool:
    known = column.dropna()
    return len(known) > 0 and known.map(lambda value: isinstance(value, bool | np.bool_)).all()


def _all(values: pd.Series):
    """True where every round held; None where nothing is claimed."""
    known = values.dropna()
    return bool(known.all()) if len(known) else None


def linked(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows under emulated links, by case."""
    return frame[frame["setting"] == EMULATED].set_index("case")


def loopback(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without any link, by case."""
    return frame[frame["setting"] == LOOPBACK].set_index("case")


def answer(claim_id: str, obtained, how: str, note: str = "") -> dict:
    return {"claim_id": claim_id, "obtained": obtained, "how": how, "note": note}


def share(value: float) -> str:
    return f"{value:.0%}" if abs(value) >= 0.1 or value == 0 else f"{value:.1%}"
