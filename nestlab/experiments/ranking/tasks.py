"""Several actions predicted at once: what each head is worth, beside its action's own rate.

Predicted before the first run: clicks and long views, of which there are many, are predicted by far better than their
rate; of actions that a few rows in ten thousand have, an NE near 1 and an AUC that a seed moves by some hundredths.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.over_seeds import over_seeds, with_spreads
from nestlab.experiments.ranking.models import difference
from nestlab.experiments.ranking.settings import MODELS
from nestlab.experiments.tables import Said

METRICS = {"AUC": 0.5, "GAUC": 0.5, "NE": 1.0}  # and what knowing nothing of a row comes to
FEW = 100  # held-out rows with the action: below it, nothing is concluded of it


def by_task(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a model and action, means and spreads over seeds; in the order of the frame."""
    first = ["positives", "samples", "label rate"]
    return over_seeds(frame, ["model", "task"], METRICS, first, means=["mean prediction"])


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    found = by_task(frame)
    shown = {name: found[name] for name in ("model", "task", "positives")}
    for name in ("label rate", "mean prediction"):
        shown[f"{name}, %"] = found[name] * 100
    for metric in METRICS:
        shown[metric] = with_spreads(found, metric)
    return pd.DataFrame(shown)


def says(frame: pd.DataFrame) -> Said:
    """Of what there is enough, whether it is predicted better than by its rate; and which encoder is better at it."""
    found = by_task(frame)
    few = found[found["positives"] < FEW]["task"].unique()
    enough = found[found["positives"] >= FEW]
    lines = [_of_model(model, part) for model, part in enough.groupby("model", sort=False)]
    if len(few):
        lines.append(f"Of *{', '.join(few)}* fewer than {FEW} held-out rows say yes: nothing is concluded of them.")
    return Said(" ".join([*lines, _encoders(frame[frame["positives"] >= FEW])]))


def _of_model(model: str, part: pd.DataFrame) -> str:
    best, worst = part.loc[part["AUC"].idxmax()], part.loc[part["AUC"].idxmin()]
    beyond, inside = part[part["NE"] >= 1]["task"], part[part["GAUC"] <= 0.5]["task"]
    text = (
        f"{model}: AUC from {worst['AUC']:.4f} ({worst['task']}) to {best['AUC']:.4f} ({best['task']}), NE from "
        f"{part['NE'].min():.4f} to {part['NE'].max():.4f}"
    )
    if len(inside):
        text += f"; *{', '.join(inside)}*: within a user's rows **no better than chance** (GAUC of 0.5 or less)"
    if len(beyond):
        text += f"; *{', '.join(beyond)}*: **no better than the rate itself** (NE of 1 or more)"
    return f"{text}."


def _encoders(enough: pd.DataFrame) -> str:
    """Where the interval over seeds of HSTU's AUC less attention's is on one side of 0."""
    one, other = (enough[enough["model"] == MODELS[name]] for name in ("multitask", "multitask_hstu"))
    gaps = {task: difference(one[one["task"] == task], other[other["task"] == task], "AUC") for task in _tasks(enough)}
    if not gaps or any(np.isnan(gap.low) for gap in gaps.values()):
        return ""
    shown = {task: gap.mean for task, gap in gaps.items() if gap.low > 0 or gap.high < 0}
    if not shown:
        return "For no action does HSTU as encoder differ from attention beyond what seeds do."
    return f"AUC of HSTU as encoder less attention's, where it is beyond what seeds do: {_listed(shown)}."


def _tasks(frame: pd.DataFrame) -> list[str]:
    return list(frame["task"].unique())


def _listed(gaps: dict[str, float]) -> str:
    return ", ".join(f"{task} {gap:+.4f}" for task, gap in gaps.items())


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a metric, two bars an action from what knowing nothing comes to, a mark a seed; pale: few positives."""
    found = by_task(frame)
    models, tasks = list(found["model"].unique()), _tasks(found)
    with plotting.style():
        figure = plotting.new_figure(11.5, 4.0)
        for axes, (metric, base) in zip(figure.subplots(1, len(METRICS)), METRICS.items(), strict=True):
            for number, model in enumerate(models):
                _bars(axes, frame[frame["model"] == model], tasks, metric, (number - 0.5) * 0.38, number)
            axes.axhline(base, color=plotting.INK, linewidth=0.9)
            axes.set_xticks(range(len(tasks)), _names(found, tasks), rotation=45, ha="right")
            axes.set_ylabel(f"{metric} (line: {base:g}, a constant)")
            axes.grid(False, axis="x")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        for number, model in enumerate(models):
            figure.axes[0].bar([0], [0], bottom=METRICS["AUC"], label=model, **plotting.bar_style(number))
        figure.axes[0].plot([], [], "o", color=plotting.INK, markersize=3, label="a seed")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, title=_LEGEND)
    return figure


_LEGEND = f"behind an action: held-out rows that have it; pale: fewer than {FEW}"


def _names(found: pd.DataFrame, tasks: list[str]) -> list[str]:
    counts = found.drop_duplicates("task").set_index("task")["positives"]
    return [f"{task.removeprefix('is_')} ({counts[task]:,})" for task in tasks]


def _bars(axes: Axes, frame: pd.DataFrame, tasks: list[str], metric: str, shift: float, number: int) -> None:
    base = METRICS[metric]
    for x, task in enumerate(tasks):
        rows = frame[frame["task"] == task]
        values = rows[metric].dropna()
        if values.empty:
            continue
        pale = {"alpha": 0.35} if rows["positives"].iloc[0] < FEW else {}
        axes.bar(x + shift, values.mean() - base, 0.36, bottom=base, **plotting.bar_style(number), **pale)
        axes.scatter([x + shift] * len(values), values, s=7, color=plotting.INK, zorder=3)


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """AUC of every action of which there is enough, of attention."""
    found = by_task(frame)
    own = found[(found["model"] == MODELS["multitask"]) & (found["positives"] >= FEW)]
    return {f"auc_{row['task']}": float(row["AUC"]) for _, row in own.iterrows()}
