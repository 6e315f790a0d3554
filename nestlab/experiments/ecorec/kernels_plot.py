"""The figure of `kernels_timed`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.ecorec.kernels_timed import NAMES, OVER_BATCH, OVER_RANK, PARTS, published
from nestlab.experiments.ecorec.streams import KINDS


def draw(frame: pd.DataFrame, title: str) -> Figure:
    """Time over the batch, a panel a kind of ids; over the rank; the parts at the largest batch."""
    kinds = list(dict.fromkeys(frame["ids"]))
    with plotting.style():
        figure = plotting.new_figure(2.6 * (len(kinds) + 1), 6.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        upper, lower = figure.subplots(2, len(kinds) + 1)
        for axes, below, kind in zip(upper, lower, kinds, strict=False):
            lines = frame[(frame["ids"] == kind) & (frame["sweep"] == OVER_BATCH)]
            _draw_times(axes, lines, "batch")
            axes.set_title(f"{kind}: {KINDS[kind]}", fontsize=8)
            _draw_parts(below, lines[lines["batch"] == lines["batch"].max()])
        over_rank = frame[frame["sweep"] == OVER_RANK]
        _draw_times(upper[-1], over_rank, "rank")
        upper[-1].set_title(f"{over_rank['ids'].iloc[0]}, {over_rank['batch'].iloc[0]:,} ids", fontsize=8)
        upper[0].set_ylabel("ms, all three parts")
        lower[0].set_ylabel("ms")
        _draw_published(lower[-1], frame)
        for axes in upper[1:]:
            axes.sharey(upper[0])
        lines, bars = upper[0].get_legend_handles_labels(), lower[0].get_legend_handles_labels()
        figure.legend(lines[0] + bars[0], lines[1] + bars[1], loc="outside lower left", ncols=6)
    return figure


def _draw_times(axes: Axes, lines: pd.DataFrame, over: str) -> None:
    for number, name in enumerate(NAMES):
        line = lines[lines["scheme"] == name]
        spread = (line["total_ms"] - line["total_ms_low"], line["total_ms_high"] - line["total_ms"])
        axes.errorbar(line[over], line["total_ms"], spread, label=NAMES[name], **plotting.series_style(number))
    axes.set(xscale="log", yscale="log", xlabel="batch, ids" if over == "batch" else "rank")
    ticks = sorted(set(lines[over]))
    ticks = ticks[:: max(1, len(ticks) // 3)]
    axes.set_xticks(ticks, [f"{tick / 1024:g}k" if tick >= 1024 else str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_parts(axes: Axes, rows: pd.DataFrame) -> None:
    bottom, at = np.zeros(len(rows)), np.arange(len(rows))
    for number, part in enumerate(PARTS):
        axes.bar(at, rows[f"{part}_ms"], 0.6, bottom, label=part, **plotting.bar_style(number + 3))
        bottom += rows[f"{part}_ms"].to_numpy()
    axes.set_xticks(at, [NAMES[name] for name in rows["scheme"]])
    told = f"{rows['unique'].iloc[0]:.0%}, n_p {rows['prefixes'].iloc[0]:.0%}"
    axes.set_title(f"{rows['batch'].iloc[0]:,} ids: n_u {told}", fontsize=8)


def _draw_published(axes: Axes, frame: pd.DataFrame) -> None:
    """Speed-ups over the batch: each kind of ids here, and the source's."""
    found = published()
    for number, name in enumerate(("tt_rec", "el_rec")):
        for kind, rows in frame[(frame["scheme"] == name) & (frame["sweep"] == OVER_BATCH)].groupby("ids", sort=False):
            dashes = plotting.DASHES[list(KINDS).index(kind)]
            axes.plot(rows["batch"], rows["speedup"], color=plotting.SERIES_COLOURS[number], linestyle=dashes)
        axes.plot(found["batch"], found[name], "x", color=plotting.SERIES_COLOURS[number], markersize=6)
    axes.axhline(1, color=plotting.INK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="batch, ids")
    axes.set_xticks([2048, 16384, 131072], ["2k", "16k", "128k"])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("EcoRec is so many times as fast as\nTT-Rec, EL-Rec; × published (GPU)", fontsize=8)
    kinds = list(dict.fromkeys(frame["ids"]))
    lines = [axes.plot([], [], color=plotting.INK, linestyle=plotting.DASHES[list(KINDS).index(k)])[0] for k in kinds]
    axes.legend(lines, kinds, loc="upper left")
