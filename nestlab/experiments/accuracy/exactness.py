"""Why the exact techniques' zero is no luck: equal bits where bits are claimed, else a bound that no rank can cross.

Ranks are a matter of comparisons, so that a small enough change of all scores changes none: see `bound`. In float64
sums in another order leave differences far below the gaps between scores; both are measured, sample by sample.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.accuracy.settings import METRICS
from nestlab.experiments.over_seeds import FLOAT32, FLOAT64, differences
from nestlab.experiments.tables import Said, chosen

_DIGEST = {
    "case": "technique",
    "equal_to_plain": "bits equal to plain, float32",
    "equal_in_order": "bits equal to the same micro-batches in order, float32",
    "weight_difference_float32": "largest difference of a weight, float32",
    "weight_difference_float64": "the same, float64",
    "score_difference": "largest difference of a score, float64",
    "least_gap": "smallest gap of a target to another item, float64",
    "least_ratio": "smallest gap over twice the difference, a sample",
    "proven": "samples whose rank is proven, %",
    "changed": "ranks that change, float64",
    "metric_difference": "largest change of a metric, float64",
    "declared": "declared",
}


def joined(techniques: pd.DataFrame) -> pd.DataFrame:
    """A row an exact technique, over all its seeds: bits in float32 (truths must hold in each seed), the bound in
    float64 (NaN where nothing was computed in it)."""
    apart = differences(techniques, METRICS)
    apart = apart[apart["declared"].str.startswith("exact")]
    rows = []
    for case, part in apart.groupby("case", sort=False):
        single, double = part[part["dtype"] == FLOAT32], part[part["dtype"] == FLOAT64]
        rows.append(
            {
                "case": case,
                "equal_to_plain": bool(single["equal_to_plain"].all()),
                "equal_in_order": bool(single["equal_in_order"].all()),
                "weight_difference_float32": single["weight_difference"].max(),
                "seeds": len(single),
                "seeds_float64": len(double),
                **_bound(double),
                "declared": part["declared"].iloc[0],
                "data": part["data"].iloc[0],
                "how": "measured",
            }
        )
    return pd.DataFrame(rows)


def _bound(double: pd.DataFrame) -> dict[str, float]:
    if double.empty:
        names = ("score_difference", "least_gap", "least_ratio", "proven", "changed", "metric_difference")
        return dict.fromkeys(("weight_difference_float64", *names), float("nan"))
    return {
        "weight_difference_float64": double["weight_difference"].max(),
        "score_difference": double["score_difference"].max(),
        "least_gap": double["least_gap"].min(),
        "least_ratio": double["least_ratio"].min(),
        "proven": 1 - double["unproven"].sum() / double["samples"].sum(),
        "changed": int(double["changed"].sum()),
        "metric_difference": double[list(METRICS)].abs().to_numpy().max(),
    }


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    zero = frame[frame["equal_to_plain"]]["case"]
    order = "all have equal bits" if frame["equal_in_order"].all() else "**not all have equal bits**"
    moved = frame[frame["weight_difference_float64"] > 0]
    text = (
        f"In float32 the whole training ends with the plain loop's bits, optimizer states too, under "
        f"*{', '.join(zero) or 'none'}*; against the same micro-batches one after another {order}, so that all their "
        "ranks are the same ones. "
    )
    if moved.empty:
        return Said(text + "In float64 no weight differs either.")
    weight, score = moved["weight_difference_float64"].max(), moved["score_difference"].max()
    proven, changed = moved["proven"].min(), int(moved["changed"].sum())
    worst = moved.loc[moved["least_ratio"].idxmin()]
    text += (
        f"In float64, against the plain loop itself, a weight differs by at most {weight:.1e} after the whole "
        f"training, a score by at most {score:.1e}; FWP alone adds the sums that it adds under DBP and is not trained "
        "in it again. "
    )
    if proven == 1:
        text += (
            f"For every held-out sample the target's score is farther from each other item's than twice that sample's "
            f"own difference, {worst['least_ratio']:.3g} times as far where it is closest: **no rank can change**, and "
            "none does."
        )
    else:
        text += (
            f"That settles {proven:.3%} of the samples; of the others the ranks were compared one by one: "
            f"{changed or 'none'} changed."
        )
    return Said(text)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left how far weights are from the plain loop's, right how far scores are, beside the smallest gap they would have
    to cross; dots on logarithmic axes, where there is no difference at all a 0 at the left edge."""
    with plotting.style():
        figure = plotting.new_figure(11.0, 1.9 + 0.42 * len(frame))
        left, right = figure.subplots(1, 2, sharey=True)
        _dots(left, frame, _WEIGHTS, 0)
        _dots(right, frame, _SCORES, 2)
        left.set_xlabel("largest difference to plain (logarithmic; 0: equal bits)")
        right.set_xlabel("largest difference to plain, and what it would have to cross (logarithmic)")
        left.set_yticks(range(len(frame)), frame["case"])
        left.set_ylim(len(frame) - 0.5, -0.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(loc="outside lower center", ncols=4)
    return figure


_WEIGHTS = {"weight_difference_float32": "weights, float32", "weight_difference_float64": "weights, float64"}
_SCORES = {"score_difference": "scores, float64", "least_gap": "smallest gap of a target to another item"}


def _dots(axes: Axes, frame: pd.DataFrame, columns: dict[str, str], first: int) -> None:
    """A row a case, a dot a column with its value; what was not computed says so, once a case."""
    low, high = _decades(frame[[*columns]].to_numpy(dtype=float))
    for number, (column, label) in enumerate(columns.items()):
        look = plotting.series_style(first + number)
        at = np.arange(len(frame)) + (number - 0.5) * 0.38
        values = frame[column].to_numpy(dtype=float)
        shown = np.where(values > 0, values, np.nan)
        axes.scatter(shown, at, s=30, color=look["color"], marker=look["marker"], label=label, zorder=3)
        for y, value in zip(at, values, strict=True):
            if value > 0:
                axes.annotate(f"{value:.1e}", (value, y), (6, 0), textcoords="offset points", va="center", fontsize=7)
            elif value == 0:
                axes.text(low * 1.5, y, "0", va="center", fontsize=8, fontweight="bold")
    for y, alone in enumerate(frame["weight_difference_float64"].isna()):
        if alone:
            axes.text(low * 1.5, y + (0.19 if first == 0 else 0), "not trained in float64", va="center", fontsize=7)
    axes.set(xscale="log", xlim=(low, high))
    axes.grid(False, axis="y")


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Two decades to the left of the smallest number above 0, for a 0, and two to the right of the largest."""
    there = values[values > 0]
    powers = np.log10(there) if there.size else np.zeros(1)
    return 10.0 ** (np.floor(powers.min()) - 2), 10.0 ** (np.ceil(powers.max()) + 2)


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """Whether every rank is proven, and the least of the ratios."""
    return {
        "exact_ranks_changed": float(frame["changed"].sum()),
        "exact_ranks_proven_percent": 100 * float(frame["proven"].min()),
    }
