"""The figure of admission and eviction."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from nestlab import plotting

LABELS = {
    "none": "every id, for good",
    "count": "admitted by count",
    "sketch": "admitted by count-min sketch",
    "show_click": "admitted by shows and clicks",
    "age": "evicted by age",
    "score": "evicted by score",
}


def draw(means: pd.DataFrame, title: str, slots: int) -> Figure:
    """Three panels of `features.measure`, of which `means` has a row a setting; `slots` of the cache."""
    with plotting.style():
        figure = plotting.new_figure(10, 4.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        sizes, refused, hits = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _draw_sizes(sizes, means)
        _draw_refused(refused, means)
        _draw_hits(hits, means, slots)
        figure.legend(*sizes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_sizes(axes: Axes, frame: pd.DataFrame) -> None:
    for number, (rule, lines) in enumerate(_by_rule(frame)):
        look = plotting.series_style(number)
        if rule == "none":
            axes.axhspan(lines["auc_low"].iloc[0], lines["auc_high"].iloc[0], color=plotting.IDLE, zorder=0)
            look |= {"markersize": 10, "linestyle": "none"}
        axes.plot(lines["rows"], lines["auc"], label=LABELS[rule], **look)
        if rule in NUMBERED:
            _number(axes, lines, NUMBERED[rule])
    axes.set(xlabel="rows in the tables at the end", ylabel="held-out AUC", xlim=(0, None))
    note = "band: 95 % interval of the AUC without rules\nsmall numbers: threshold (by count), batches (by age)"
    axes.set_title(note, fontsize=8)
    axes.margins(y=0.1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


# Which points bear their setting, and where: two rules are enough to read the others by, more would overlap.
NUMBERED = {"count": (-5, 7, "right"), "age": (6, -9, "left")}


def _number(axes: Axes, lines: pd.DataFrame, where: tuple[int, int, str]) -> None:
    for x, y, value in zip(lines["rows"], lines["auc"], lines["value"], strict=True):
        text = axes.annotate(f"{value:g}", (x, y), where[:2], textcoords="offset points", ha=where[2], va="center")
        text.set(fontsize=7, path_effects=[withStroke(linewidth=2, foreground=plotting.PAPER)])


def _draw_refused(axes: Axes, frame: pd.DataFrame) -> None:
    for number, (rule, lines) in enumerate(_by_rule(frame)):
        if rule in ("count", "sketch", "show_click"):
            axes.plot(lines["value"], 100 * lines["refused_share"], **plotting.series_style(number))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="threshold (occurrences, or score)", ylabel="refused look-ups of unique keys (%)", ylim=(0, None))


def _draw_hits(axes: Axes, frame: pd.DataFrame, slots: int) -> None:
    for number, (rule, lines) in enumerate(_by_rule(frame)):
        look = plotting.series_style(number) | ({"markersize": 10, "linestyle": "none"} if rule == "none" else {})
        axes.plot(lines["rows"], 100 * lines["hit_share"], **look)
    axes.set(xlabel="rows in the tables at the end", ylabel="hits of look-ups not refused (%)", xlim=(0, None))
    axes.set_title(f"a slot cache of {slots:,} slots, lru", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _by_rule(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for rule in LABELS:
        lines = frame[frame["rule"] == rule].sort_values("value")
        if len(lines):
            yield rule, lines
