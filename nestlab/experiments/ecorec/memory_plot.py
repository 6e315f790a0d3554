"""The figure of `memory`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.memory import (
    CHUNKED,
    COMPUTED,
    DENSE,
    EL_REC,
    FORWARD,
    KERNELS,
    MEASURED,
    ROWS,
    TORCH,
    WHOLE,
    table_1,
)


def draw(frame: pd.DataFrame, title: str) -> Figure:
    """Bytes between products over the slices; the time over the slices; the peak of the embedding part."""
    with plotting.style():
        figure = plotting.new_figure(11.5, 4.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        held, took, peaks = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.5))
        _draw_slices(held, frame, "intermediates_bytes", 1e-6)
        held.set_ylabel("held between products, MB")
        held.set_yscale("log")
        _draw_slices(took, frame, "total_ms", 1)
        took.set_ylabel("prepare, forward and backward, ms")
        took.set_ylim(0)
        figure.legend(*_lines(held, took), loc="outside lower left", ncols=3)
        _draw_peaks(peaks, frame)
    return figure


def _draw_slices(axes: Axes, frame: pd.DataFrame, column: str, factor: float) -> None:
    at = frame["slices"].notna()
    for number, what in enumerate((TORCH, KERNELS)):
        line = frame[at & (frame["what"] == what)]
        spread = None
        if column == "total_ms":
            spread = (line["total_ms"] - line["total_ms_low"], line["total_ms_high"] - line["total_ms"])
        axes.errorbar(line["slices"], factor * line[column], spread, label=what, **plotting.series_style(number))
    most = int(frame.loc[at, "indices"].iloc[0])
    for number, what in enumerate((WHOLE, CHUNKED, EL_REC)):
        line = frame[(frame["what"] == what) & (frame["indices"] == most)]
        if line[column].notna().any():
            look = {"color": plotting.SERIES_COLOURS[number + 2], "linestyle": plotting.DASHES[number + 2]}
            axes.axhline(factor * line[column].iloc[0], label=_named(line), **look)
    slices = sorted(set(frame.loc[at, "slices"]))
    axes.set(xscale="log", xlabel=f"slices of a look-up of {most:,} ids")
    axes.set_xticks(slices, [f"{n:g}" for n in slices])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _named(line: pd.DataFrame) -> str:
    return line["what"].iloc[0] + (" (computed)" if line["how"].iloc[0] == COMPUTED else "")


def _lines(*panels: Axes) -> tuple[list, list]:
    named = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(named.values()), list(named)


def _draw_peaks(axes: Axes, frame: pd.DataFrame) -> None:
    """Bars of gibibytes, and the source's table 1 beside those of its size."""
    bars = _bars(frame)
    at = np.arange(len(bars))
    for number, how in enumerate((MEASURED, COMPUTED)):
        rows = (bars["how"] == how).to_numpy()
        axes.barh(at[rows], bars["gib"][rows], 0.66, label=how, **plotting.bar_style(number))
    known = bars["published"].notna()
    look = {"marker": "X", "markersize": 8, "markeredgecolor": plotting.PAPER, "linestyle": "none"}
    axes.plot(bars["published"][known], at[known], color=plotting.INK, label="published, table 1", **look)
    for y, row in enumerate(bars.itertuples()):
        axes.text(
            max(row.gib, row.published if row.published > 0 else 0) * 1.2, y, f"{row.gib:.3g}", va="center", fontsize=7
        )
    axes.set_yticks(at, bars["name"], fontsize=7)
    axes.set(xscale="log", xlabel="peak of the embedding part, GiB", ylim=(len(bars) - 0.4, -0.6))
    axes.set_xlim(bars["gib"].min() / 2, bars["gib"].max() * 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(False, axis="y")
    axes.legend(loc="upper right", fontsize=7)


def _bars(frame: pd.DataFrame) -> pd.DataFrame:
    """name, gib, how, published of what is drawn."""
    whole = dict(zip(table_1(), register.claim("ER-P-052").value, strict=True))
    kept = frame[
        (frame["rows"] == ROWS)
        & (frame["what"] != FORWARD)
        & (frame["slices"].isna() | frame["slices"].isin(_ends(frame)))
    ]
    rows = []
    for row in kept.itertuples():
        slices = "" if np.isnan(row.slices) else f", {_slices(row.slices)}"
        published = register.claim("ER-P-054").value if row.what == DENSE else whole.get(row.indices, np.nan)
        name = f"{row.what}{slices}\n{row.indices:,} ids"
        rows.append({"name": name, "gib": row.peak_bytes / 2**30, "how": row.how, "published": published})
    return pd.DataFrame(rows)


def _slices(count: float) -> str:
    return "1 slice" if count == 1 else f"{count:.0f} slices"


def _ends(frame: pd.DataFrame) -> list[float]:
    return [1, frame["slices"].max()]
