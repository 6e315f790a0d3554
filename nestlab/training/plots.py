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


CLICKS = {  # by metric, what the axis says
    "auc": "held-out AUC (higher is better)",
    "ne": "held-out normalised entropy\n(lower is better; 1 = the label rate)",
}
TASKS = (".auc", ".gauc")  # of several tasks: the ends of the metrics' names


def plot_curve(history: History, meta: Mapping[str, Any]) -> Figure:
    """Training loss and held-out metrics over steps: of clicks AUC and normalised entropy, of several tasks each one's
    AUC and GAUC, else those that a look is told by.

    Args:
        meta: names the data set and how figures were obtained, for the title.
    """
    panels = _panels(history)
    with plotting.style():
        figure = plotting.new_figure(10 * (1 + len(panels)) / 3, 3.4)
        figure.suptitle(plotting.titled("Learning curve", meta), x=0.01, ha="left", fontsize=10)
        loss, *others = figure.subplots(1, 1 + len(panels))
        _draw_loss(loss, history, "log" if history.best in ("auc", "mean_auc") else "softmax")
        for axes, (label, metrics) in zip(others, panels.items(), strict=True):
            _draw_metrics(axes, history, metrics, label)
    return figure


def _panels(history: History) -> dict[str, dict[str, str]]:
    """By label of an axis, its lines: metric by name; an empty name needs no legend."""
    if history.best == "auc":
        return {label: {"": metric} for metric, label in CLICKS.items()}
    if history.best != "mean_auc":
        return {f"held-out {metric}\n(higher is better)": {"": metric} for metric in history.shown}
    names = history.evaluations_frame().columns
    by_end = {end: {name.removesuffix(end): name for name in names if name.endswith(end)} for end in TASKS}
    return {f"held-out {end[1:].upper()} (higher is better)": lines for end, lines in by_end.items() if lines}


def _draw_loss(axes: Axes, history: History, kind: str) -> None:
    steps = history.steps_frame()
    axes.plot(steps["step"], steps["train_loss"], color=plotting.PALETTE["grey"], linewidth=0.7, label="each step")
    smooth = steps["train_loss"].rolling(SMOOTHED, min_periods=1).mean()
    axes.plot(steps["step"], smooth, color=plotting.SERIES_COLOURS[0], label=f"mean of the last {SMOOTHED}")
    axes.set(xlabel="step", ylabel=f"training {kind} loss (nats)")
    axes.legend()


def _draw_metrics(axes: Axes, history: History, metrics: Mapping[str, str], label: str) -> None:
    looks = history.evaluations_frame()
    for number, (name, metric) in enumerate(metrics.items()):
        style = plotting.series_style(number)
        if number >= len(plotting.SERIES_COLOURS):  # KuaiRand has one action more
            style |= {"color": plotting.INK, "markerfacecolor": plotting.PAPER}
        axes.plot(looks["step"], looks[metric], label=name, **style)
    if all(metrics):
        axes.legend(fontsize=7)
    axes.set(xlabel="step", ylabel=label, xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.ticklabel_format(axis="y", useOffset=False)
