"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nestlab import plotting
from nestlab.training.fit import History

SMOOTHED = 25  # steps of the running mean


def plot_curve(history: History, meta: Mapping[str, Any]) -> Figure:
    """Training loss, held-out AUC and held-out normalised entropy over steps.

    Args:
        meta: names the data set and how figures were obtained, for the title.
    """
    with plotting.style():
        figure = plotting.new_figure(10, 3.4)
        figure.suptitle(plotting.titled("Learning curve", meta), x=0.01, ha="left", fontsize=10)
        loss, auc, ne = figure.subplots(1, 3)
        _draw_loss(loss, history)
        _draw_metric(auc, history, "auc", "held-out AUC (higher is better)")
        _draw_metric(ne, history, "ne", "held-out normalised entropy\n(lower is better; 1 = the label rate)")
    return figure


def _draw_loss(axes: Axes, history: History) -> None:
    steps = history.steps_frame()
    axes.plot(steps["step"], steps["train_loss"], color=plotting.PALETTE["grey"], linewidth=0.7, label="each step")
    smooth = steps["train_loss"].rolling(SMOOTHED, min_periods=1).mean()
    axes.plot(steps["step"], smooth, color=plotting.SERIES_COLOURS[0], label=f"mean of the last {SMOOTHED}")
    axes.set(xlabel="step", ylabel="training log loss (nats)")
    axes.legend()


def _draw_metric(axes: Axes, history: History, name: str, label: str) -> None:
    looks = history.evaluations_frame()
    axes.plot(looks["step"], looks[name], **plotting.series_style(0))
    axes.set(xlabel="step", ylabel=label, xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.ticklabel_format(axis="y", useOffset=False)
