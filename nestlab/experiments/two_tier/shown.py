"""Tables as a notebook shows them: texts in full, numbers to four digits."""

from __future__ import annotations

import pandas as pd


def number(value: float) -> str:
    """Four significant digits; whole numbers from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Shown(pd.DataFrame):
    """A frame that a notebook shows without cutting texts off. What is done with it gives ordinary frames."""

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return self.to_html(na_rep="", float_format=number, notebook=True, border=0)
