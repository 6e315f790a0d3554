"""The figure of the end-to-end step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.tables import rounds_text, whiskers

_PARTS = {
    "look_up_ms": "ids: routing, sorting, deduplication",
    "forward_ms": "tables, forward",
    "backward_ms": "tables, backward",
    "update_ms": "tables, update",
}
_BYTES = {
    "tables_bytes": "tables (weights, gradients kept, index)",
    "intermediate_bytes": "between the products of a look-up",
    "rest_bytes": "samples, activations, exchange, dense part",
}


def draw(found: pd.DataFrame, title: str) -> Figure:
    """Of a row a data set and kind of table, the median round: times above, bytes below."""
    names = list(found["data"].unique())
    with plotting.style():
        figure = plotting.new_figure(5.4 * len(names), 6.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        axes = figure.subplots(2, len(names), squeeze=False)
        for number, name in enumerate(names):
            rows = found[found["data"] == name].reset_index(drop=True)
            _draw_step(axes[0, number], rows)
            _draw_bytes(axes[1, number], rows)
            axes[0, number].set_title(f"{name}; {rows['samples'].iloc[0]:,} samples a step", fontsize=8)
        for line in axes:
            for each in line:
                each.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=7)
    return figure


def _draw_step(axes: Axes, rows: pd.DataFrame) -> None:
    rest = rows["step_ms"] - rows["tables_ms"]
    _stack(axes, rows, [rows[name] for name in _PARTS] + [rest], [*_PARTS.values(), "dense part, and the rest"])
    low, high = whiskers(rows)
    axes.errorbar(rows["step_ms"], rows.index, xerr=(low, high), fmt="none", ecolor=plotting.INK, capsize=3)
    for y, row in rows.iterrows():
        axes.annotate(
            f"{row['step_ms']:.3g}", (row["step_ms_high"], y), (4, 0), textcoords="offset points", va="center"
        )
    axes.set_xlabel(f"ms a step ({rounds_text(int(rows['rounds'].max()))})")
    axes.margins(x=0.12)


def _draw_bytes(axes: Axes, rows: pd.DataFrame) -> None:
    parts = [rows[name] / 1e6 for name in _BYTES]
    _stack(axes, rows, parts, list(_BYTES.values()))
    for y, row in rows.iterrows():
        text = f"{row['peak_bytes'] / 1e6:.1f}"
        axes.annotate(text, (row["peak_bytes"] / 1e6, y), (4, 0), textcoords="offset points", va="center")
    axes.set_xlabel("peak bytes, MB, each kind at its highest")
    axes.margins(x=0.12)


def _stack(axes: Axes, rows: pd.DataFrame, parts: Sequence[pd.Series], labels: Sequence[str]) -> None:
    left = np.zeros(len(rows))
    for number, (part, label) in enumerate(zip(parts, labels, strict=True)):
        axes.barh(rows.index, part, 0.7, left, label=label, **plotting.bar_style(number))
        left = left + part.to_numpy()
    axes.set_yticks(rows.index, rows["name"])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
