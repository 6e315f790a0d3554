"""Training loss over steps: the plain loop's, and how far each technique's curve is from it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nestlab import plotting
from nestlab.experiments.compared import PLAIN
from nestlab.experiments.tables import Said

POINTS = 60  # of a drawn curve, each the mean of its steps


def thinned(losses: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Last step of each piece and its mean loss, of losses [steps]; at most `points` pieces of nearly equal length."""
    ends = np.unique(np.linspace(0, len(losses), min(points, len(losses)) + 1).round().astype(int))
    sums = np.concatenate([[0.0], np.cumsum(losses, dtype=np.float64)])
    return ends[1:], np.diff(sums[ends]) / np.diff(ends)


def apart(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of all cases but plain, with `loss` less plain's of the same seed and step."""
    plain = frame[frame["case"] == PLAIN].set_index(["seed", "step"])["loss"]
    rows = frame[frame["case"] != PLAIN].copy()
    at = pd.MultiIndex.from_frame(rows[["seed", "step"]])
    rows["loss"] = rows["loss"].to_numpy() - plain.loc[at].to_numpy()
    return rows


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a case: loss of the last piece, and the largest difference to plain along the way, over all seeds."""
    ends = frame[frame["step"] == frame["step"].max()].groupby("case", sort=False)["loss"].agg(["mean", "std"])
    most = apart(frame).groupby("case", sort=False)["loss"].agg(lambda values: values.abs().max())
    shown = {
        "technique": ends.index,
        "loss at the end": ends["mean"].to_numpy(),
        "spread over seeds": ends["std"].to_numpy(),
    }
    return pd.DataFrame(shown | {"largest difference to plain on the way": most.reindex(ends.index).to_numpy()})


def says(frame: pd.DataFrame) -> Said:
    most = apart(frame).groupby("case", sort=False)["loss"].agg(lambda values: values.abs().max())
    same = [case for case, value in most.items() if value == 0]
    far = most[most > 0].sort_values()
    text = f"The same curve to the last bit: *{', '.join(same) or 'none'}*. "
    if len(far):
        text += (
            "Largest distance of two smoothed curves, in nats: "
            + ", ".join(f"*{c}* {v:.1e}" for c, v in far.items())
            + "."
        )
    return Said(text)


def alike(frame: pd.DataFrame) -> dict[str, str]:
    """Case that stands for a curve → all cases that have this very curve, bit by bit in their seeds, as one label."""
    curves: dict[str, dict[int, bytes]] = {}
    for (case, seed), part in frame.groupby(["case", "seed"], sort=False):
        curves.setdefault(case, {})[seed] = part.sort_values("step")["loss"].to_numpy(dtype=np.float64).tobytes()
    found: dict[str, list[str]] = {}
    for case, own in curves.items():
        same = (first for first in found if own.items() <= curves[first].items())
        found.setdefault(next(same, case), []).append(case)
    return {first: " = ".join(cases) for first, cases in found.items()}


def of_all(frame: pd.DataFrame) -> pd.DataFrame:
    """The seeds that every case was trained in: means over others would not be of the same trainings."""
    cases = frame.groupby("seed")["case"].nunique()
    return frame[frame["seed"].isin(cases[cases == frame["case"].nunique()].index)]


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left the loss, means over the seeds of all; right the distance to plain's curve, the largest of any seed. A log
    axis has no 0: a curve has a gap there, which the axis says."""
    shared = of_all(frame)
    far = apart(frame).assign(loss=lambda each: each["loss"].abs())
    gaps = (far.groupby(["case", "step"])["loss"].max() == 0).any()
    with plotting.style():
        figure = plotting.new_figure(11.0, 4.2)
        left, right = figure.subplots(1, 2)
        for number, (case, label) in enumerate(alike(frame).items()):
            _line(left, shared[shared["case"] == case].groupby("step")["loss"].mean(), number, label)
            values = far[far["case"] == case].groupby("step")["loss"].max()
            _line(right, values.where(values > 0), number)
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set(xlabel="step", ylabel="training loss, nats")
        told = "\n(log scale; gaps: exactly 0)" if gaps else ""
        right.set(xlabel="step", ylabel=f"distance to the plain loop's loss, nats{told}", yscale="log")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _line(axes: Axes, values: pd.Series, number: int, label: str = "") -> None:
    """Broken where a value is missing; some eight points have marks, and all that no line reaches."""
    look = plotting.series_style(number) | ({"label": label} if label else {})
    there = values.notna().to_numpy()
    beside = np.append(there[1:], False) | np.append(False, there[:-1])
    every = max(1, len(values) // 8)
    marked = there & ((np.arange(len(values)) % every == 0) | ~beside)
    marks = np.flatnonzero(marked).tolist()
    axes.plot(values.index, values.to_numpy(), linewidth=1.2, markersize=3, markevery=marks, **look)
