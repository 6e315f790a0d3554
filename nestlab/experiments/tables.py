"""Frames as parts need them and as notebooks show them: names a reader understands, the median round, sentences."""

from __future__ import annotations

import html
from collections.abc import Mapping

import numpy as np
import pandas as pd

_UNITS = {", %": 100.0, ", MB": 1e-6}


class Said(str):
    """A text that a notebook shows as Markdown."""

    def _repr_markdown_(self) -> str:
        return str(self)


class Shown(pd.DataFrame):
    """A frame that a notebook shows without cutting texts off, numbers to four digits. What is done with it gives
    ordinary frames."""

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return self.to_html(na_rep="", float_format=_four_digits, notebook=True, border=0)


class Table(Shown):
    """A frame that a notebook shows with all its columns, numbers to three digits, and a line above it."""

    def _repr_html_(self) -> str:
        note = self.attrs.get("note")
        above = f"<p><b>{html.escape(note)}</b></p>" if note else ""
        with pd.option_context("display.max_colwidth", None, "display.max_columns", None):
            return above + self.to_html(na_rep="", float_format=rounded, notebook=True, border=0, index=False)


def noted(frame: pd.DataFrame, note: str = "") -> Table:
    table = Table(frame)
    table.attrs["note"] = note
    return table


def rounded(value: float) -> str:
    """Three significant digits; whole numbers from a hundred on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _four_digits(value: float) -> str:
    """Whole numbers from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def chosen(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """These columns under names that a reader understands, those that are there; a name that ends in `, %` or `, MB`
    is of a share or of bytes, and its values are converted."""
    found = {}
    for column, name in columns.items():
        if column in frame.columns:
            factor = next((each for ending, each in _UNITS.items() if name.endswith(ending)), None)
            found[name] = frame[column] if factor is None else frame[column] * factor
    return pd.DataFrame(found)


def medians(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row a group, in the order of first appearance: the round whose step is the median one (of an even number the
    quicker of the middle two), so that its parts sum to its step; what is true or false must hold in every round;
    `step_ms_low` and `step_ms_high`: the quickest and the slowest round, of `rounds`."""
    rows = []
    for _, rounds in frame.groupby(by, sort=False):
        ordered = rounds.sort_values("step_ms", kind="stable")
        row = ordered.iloc[(len(ordered) - 1) // 2].to_dict()
        row |= {name: _all(rounds[name]) for name in frame.columns if _holds_truth(frame[name])}
        rows.append(row | _spread(ordered["step_ms"]))
    return pd.DataFrame(rows).drop(columns="round", errors="ignore")


def _spread(ordered: pd.Series) -> dict:
    """As far as times are known."""
    return {"step_ms_low": ordered.iloc[0], "step_ms_high": ordered.iloc[-1], "rounds": len(ordered)}


def spread_text(row: pd.Series) -> str:
    """Least and most of the rounds; with one round there is no spread."""
    if row["rounds"] < 2:
        return "one round"
    return f"{rounded(row['step_ms_low'])} to {rounded(row['step_ms_high'])}, {row['rounds']} rounds"


def rounds_text(rounds: int) -> str:
    """What a bar and its lines are, under a figure."""
    if rounds < 2:
        return "one round, spread unknown"
    return f"{'quicker' if rounds == 2 else 'median'} of {rounds} rounds, lines: least to most"


def whiskers(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """From the median round to the quickest and to the slowest, as error bars."""
    return rows["step_ms"] - rows["step_ms_low"], rows["step_ms_high"] - rows["step_ms"]


def _holds_truth(column: pd.Series) -> bool:
    known = column.dropna()
    return len(known) > 0 and known.map(lambda value: isinstance(value, bool | np.bool_)).all()


def _all(values: pd.Series):
    """True where every round held; None where nothing is claimed."""
    known = values.dropna()
    return bool(known.all()) if len(known) else None


def answer(claim_id: str, obtained, how: str, note: str = "") -> dict:
    return {"claim_id": claim_id, "obtained": obtained, "how": how, "note": note}


def share(value: float) -> str:
    return f"{value:.0%}" if abs(value) >= 0.1 or value == 0 else f"{value:.1%}"
