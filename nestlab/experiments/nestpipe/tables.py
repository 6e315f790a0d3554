"""Frames as the parts need them: medians over rounds, and sentences that a notebook shows as text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.experiments.nestpipe.links import EMULATED, LOOPBACK


class Said(str):
    """A text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


def medians(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row a group, in the order of first appearance: medians of numbers, the first of anything else; `step_ms_low`
    and `step_ms_high`: the quickest and the slowest round."""
    groups = frame.groupby(by, sort=False)
    found = groups.agg({name: _summed(frame[name]) for name in frame.columns if name not in (*by, "round")})
    found["step_ms_low"], found["step_ms_high"] = groups["step_ms"].min(), groups["step_ms"].max()
    return found.reset_index()


def _summed(column: pd.Series):
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return "median"
    return _all if _holds_truth(column) else "first"


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
