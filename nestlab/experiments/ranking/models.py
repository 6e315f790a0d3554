"""Five models trained plainly on the same rows, and what each predicts of clicks; beside a constant.

Predicted before the first run: all are far above the constant; what reads the history (DIN and the two with several
tasks) is above what does not (DLRM, DCN-V2) by more in GAUC than in AUC, since tab, hour and the user's own rate, which
all of them read, tell most of a click; HSTU as encoder is within the spread over seeds of plain attention. On real rows
it came otherwise: histories raise the AUC and lower the GAUC, HSTU as encoder less of both.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.over_seeds import over_seeds, with_spreads
from nestlab.experiments.ranking.looking import METRICS
from nestlab.experiments.ranking.measuring import CONSTANT
from nestlab.experiments.ranking.settings import MODELS
from nestlab.experiments.tables import Said, chosen
from nestlab.results.intervals import Estimate, of_difference

BETTER = {"AUC": "higher", "GAUC": "higher", "log loss": "lower", "NE": "lower"}
# What is compared in words: the second reads what the first does not, or otherwise.
PAIRS = (("dcnv2", "din"), ("dlrm", "dcnv2"), ("din", "multitask"), ("multitask", "multitask_hstu"))


def by_model(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a model, means and spreads over its seeds; in the order of the frame."""
    return over_seeds(frame, ["model"], METRICS, first=["weights"], means=["seconds", "mean prediction"])


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    found = by_model(frame)
    for metric in METRICS:
        found[metric] = with_spreads(found, metric)
    names = {"model": "model", "seeds": "seeds", **{metric: metric for metric in METRICS}}
    names |= {"mean prediction": "mean prediction", "weights": "weights of the dense part"}
    return chosen(found, names | {"seconds": "seconds a training"})


def says(frame: pd.DataFrame) -> Said:
    """How far from the constant, which models differ over seeds, and what another sample of rows would do."""
    found, first = by_model(frame).set_index("model"), frame[frame["model"] != CONSTANT].iloc[0]
    models = found.drop(index=CONSTANT)
    ranges = {metric: f"{models[metric].min():.4f} to {models[metric].max():.4f}" for metric in ("AUC", "NE")}
    text = (
        f"{int(first['samples']):,} held-out rows, of which {first['label rate']:.1%} are clicks. The constant, the "
        f"rate of the training rows, has an AUC of 0.5 and an NE of {found.loc[CONSTANT, 'NE']:.4f}; the models an "
        f"AUC of {ranges['AUC']} and an NE of {ranges['NE']}. GAUC is over the {first['GAUC share']:.0%} of the rows "
        "whose user has both a click and none."
    )
    lines = [text, *(compared(frame, MODELS[one], MODELS[other]) for one, other in PAIRS)]
    half = (first["AUC high"] - first["AUC low"]) / 2
    if np.isfinite(half):
        lines.append(f"Another sample of so many rows would move an AUC by about ±{half:.4f} (95 %), all models alike.")
    return Said(" ".join(lines))


def compared(frame: pd.DataFrame, one: str, other: str) -> str:
    """Whether `other` is better than `one`, in AUC and in GAUC; nothing is said of a single seed."""
    parts = []
    for metric in ("AUC", "GAUC"):
        gap = difference(frame[frame["model"] == one], frame[frame["model"] == other], metric)
        if np.isnan(gap.low):
            return f"Of {other} and {one} one seed tells nothing."
        place = "**higher**" if gap.low > 0 else "**lower**" if gap.high < 0 else "no difference shown"
        parts.append(f"{metric} {place} ({gap.mean:+.4f}; {gap.low:+.4f} to {gap.high:+.4f})")
    return f"{other} against {one}: {', '.join(parts)}."


def difference(one: pd.DataFrame, other: pd.DataFrame, metric: str) -> Estimate:
    """Of `other` less `one`, seed by seed, with the 95 % interval of its mean by Student's t."""
    first, second = (dict(zip(rows["seed"], rows[metric], strict=True)) for rows in (one, other))
    return of_difference(first, second)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a metric, a row a model: a mark a seed and a stroke for their mean. The constant's value stands below."""
    models = [name for name in frame["model"].unique() if name != CONSTANT]
    constant = frame[frame["model"] == CONSTANT].iloc[0]
    with plotting.style():
        figure = plotting.new_figure(11.5, 1.7 + 0.36 * len(models))
        panels = figure.subplots(1, len(METRICS), sharey=True)
        for axes, metric in zip(panels, METRICS, strict=True):
            for y, model in enumerate(models):
                _row(axes, y, frame[frame["model"] == model], metric)
            axes.set_xlabel(f"{metric} ({BETTER[metric]} is better)\nconstant: {constant[metric]:.4f}")
            axes.grid(False, axis="y")
            axes.margins(x=0.12)
        panels[0].set_yticks(range(len(models)), models)
        panels[0].set_ylim(len(models) - 0.5, -0.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        panels[0].plot([], [], **_BAND, label="95 % over other held-out rows, first seed")
        panels[0].plot([], [], "o", color=plotting.INK, markersize=4, label="a seed; stroke: their mean")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


_BAND = {"color": plotting.IDLE, "linewidth": 7, "solid_capstyle": "butt", "zorder": 1}


def _row(axes: Axes, y: int, rows: pd.DataFrame, metric: str) -> None:
    look, values = plotting.series_style(y), rows[metric].to_numpy()
    low, high = (rows[f"AUC {end}"].dropna() for end in ("low", "high"))
    if metric == "AUC" and len(low):
        axes.plot(
            [low.iloc[0], high.iloc[0]], [y, y], color=plotting.IDLE, linewidth=7, solid_capstyle="butt", zorder=1
        )
    axes.scatter(values, [y] * len(values), s=16, color=look["color"], marker=look["marker"], alpha=0.7, zorder=3)
    axes.plot([values.mean()] * 2, [y - 0.32, y + 0.32], color=look["color"], linewidth=2, zorder=4)


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """AUC, GAUC and NE of each model."""
    found = by_model(frame).set_index("model")
    names = {"auc": "AUC", "gauc": "GAUC", "ne": "NE"}
    return {
        f"{key}_{name}": float(found.loc[shown, metric])
        for name, shown in MODELS.items()
        for key, metric in names.items()
    }
