"""What each technique changes in HR, NDCG and MRR, training by training beside the plain loop of the same seed.

Predicted before the first run: in float64 the exact ones change no rank; in float32 the rounding of FWP's other order
of sums grows over the training, but stays below a tenth of the spread over seeds; one stale update costs less than that
spread; int8 rows cost nothing that shows; two replica groups cost about as much as staleness; a tensor train of rank 16
costs most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from nestlab import plotting
from nestlab.experiments.accuracy.settings import CONSISTENCY, METRICS
from nestlab.experiments.compared import PLAIN, STALE, TWO_D
from nestlab.experiments.nestpipe.cases import NESTPIPE
from nestlab.experiments.over_seeds import (
    FLOAT32,
    FLOAT64,
    differences,
    largest,
    spread,
    summary,
    with_spreads,
)
from nestlab.experiments.tables import Said, answer
from nestlab.results.intervals import of_mean

_KINDS = ("exact, float64", "exact, float32: rounding", "inexact")  # by `_place`
_LEAST = 1e-4  # half of an axis where nothing differs: one held-out sample of ten thousand


def digest(
    frame: pd.DataFrame,
    metrics: Sequence[str] = METRICS,
    apart: Sequence[str] = CONSISTENCY,
    changed: str = "ranks that change, %",
) -> pd.DataFrame:
    """A row a case and dtype: the metrics, the differences of some to plain with the spread, and what is declared."""
    found = summary(frame, metrics)
    shown = {"technique": found["case"], "computed in": found["dtype"], "seeds": found["seeds"]}
    for metric in metrics:
        shown[metric] = with_spreads(found, metric)
    for metric in apart:
        shown[f"Δ {metric}"] = with_spreads(found, f"Δ {metric}", "+.4f")
    shown[changed] = found["changed"] * 100
    return pd.DataFrame(shown | {"loss of the last epoch": found["loss"], "declared": found["declared"]})


def says(frame: pd.DataFrame) -> Said:
    """Whether exact is exact, what rounding alone does, what inexact ones cost, with its interval over seeds."""
    apart = differences(frame, METRICS)
    plain = frame[(frame["case"] == PLAIN) & (frame["dtype"] == FLOAT32)]
    sd, count = spread(plain["HR@10"]), int(plain["samples"].iloc[0])
    exact = apart[apart["declared"].str.startswith("exact")]
    lines = [
        f"{count:,} held-out samples, each ranked against all items; the plain loop's HR@10 is "
        f"{plain['HR@10'].mean():.4f}"
        + (f", with a standard deviation of {sd:.4f} over {len(plain)} seeds." if len(plain) > 1 else ", of one seed."),
        _zero(exact[exact["dtype"] == FLOAT64]),
        _rounding(exact[exact["dtype"] == FLOAT32]),
        costs(apart, "HR@10"),
    ]
    return Said(" ".join(filter(None, lines)))


def _zero(rows: pd.DataFrame) -> str:
    """Of the exact ones in float64, where something was computed in it."""
    if rows.empty:
        return ""
    changed = int(rows["changed"].sum())
    return (
        f"In float64 the exact techniques change {changed or 'no'} rank{'s' if changed > 1 else ''} and all metrics by "
        f"{_amount(rows[list(METRICS)].abs().to_numpy().max())}."
    )


def _amount(value: float) -> str:
    return "exactly 0" if value == 0 else f"up to **{value:.1e}**"


def _rounding(rows: pd.DataFrame) -> str:
    """What sums in another order come to in float32."""
    moved = rows[rows["changed"] > 0]
    if moved.empty:
        return "In float32 too."
    most = moved[list(CONSISTENCY)].abs().to_numpy().max()
    return (
        f"In float32 *{', '.join(rows[rows['changed'] == 0]['case'].unique())}* keeps every rank; where sums come in "
        f"another order, their rounding grows over the training and moves a metric by up to {most:.1e}: whatever is "
        "smaller than that is no cost of a technique."
    )


def costs(apart: pd.DataFrame, metric: str) -> str:
    """Of inexact ones, with the 95 % interval over seeds; where it holds 0, these trainings show no change."""
    parts = []
    for case, rows in apart[apart["declared"].str.startswith("inexact")].groupby("case", sort=False):
        cost = of_mean(rows[metric])
        if np.isnan(cost.low):
            parts.append(f"*{case}* {cost.mean:+.4f}, of one seed")
            continue
        place = "none that shows" if cost.low <= 0 <= cost.high else "**beyond what seeds do**"
        parts.append(f"*{case}* {cost.mean:+.4f} ({cost.low:+.4f} to {cost.high:+.4f}: {place})")
    return f"Declared inexact, change of {metric}: {'; '.join(parts)}." if parts else ""


def plot(frame: pd.DataFrame, title: str, metrics: Sequence[str] = CONSISTENCY) -> Figure:
    """A row a case and dtype, a panel a metric: the difference to plain, a mark a seed and one for their mean. Axes are
    linear, so that what seems large is; where nothing at all differs a 0 stands. The legend has what is drawn."""
    apart = differences(frame, metrics)
    groups = list(apart.groupby(["case", "dtype"], sort=False))
    groups.sort(key=lambda each: _place(each[1]))
    spreads = frame[(frame["case"] == PLAIN) & (frame["dtype"] == FLOAT32)]
    with plotting.style():
        figure = plotting.new_figure(11.5, 1.7 + 0.33 * len(groups))
        panels = figure.subplots(1, len(metrics), sharey=True)
        for axes, metric in zip(panels, metrics, strict=True):
            _panel(axes, groups, metric, spread(spreads[metric]))
        panels[0].set_yticks(range(len(groups)), [_label(*name) for name, _ in groups])
        panels[0].set_ylim(len(groups) - 0.5, -0.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        handles = _legend(groups, metrics, any(np.isfinite(spread(spreads[metric])) for metric in metrics))
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _legend(groups: list, metrics: Sequence[str], band: bool) -> list[Artist]:
    """What some panel shows: the grey band where there are several seeds, marks of each kind, the 0."""
    largest_of = [(_place(rows), rows[metric].abs().max()) for _, rows in groups for metric in metrics]
    handles: list[Artist] = [Patch(color=plotting.IDLE, label="± the plain loop's spread over seeds")] if band else []
    places = sorted({place for place, most in largest_of if most > 0})
    for place in places:
        look = plotting.series_style(place) | {"linestyle": "", "markersize": 4}
        told = " (a mark a seed, a stroke their mean)" if place == places[-1] else ""
        handles.append(Line2D([], [], label=_KINDS[place] + told, **look))
    if any(most == 0 for _, most in largest_of):
        zero = {"linestyle": "", "marker": r"$\mathbf{0}$", "markeredgewidth": 0, "color": plotting.INK}
        handles.append(Line2D([], [], label="the plain loop's value to the last bit, in every seed", **zero))
    return handles


def _place(rows: pd.DataFrame) -> int:
    """Exact in float64, exact in float32, inexact; a stable order within."""
    exact = rows["declared"].iloc[0].startswith("exact")
    return (0 if rows["dtype"].iloc[0] == FLOAT64 else 1) if exact else 2


def _label(case: str, dtype: str) -> str:
    return f"{case}, {dtype}"


def _panel(axes: Axes, groups: list, metric: str, sd: float) -> None:
    if np.isfinite(sd):
        axes.axvspan(-sd, sd, color=plotting.IDLE, zorder=0)
    axes.axvline(0, color=plotting.INK, linewidth=0.8)
    for y, (_, rows) in enumerate(groups):
        look = plotting.series_style(_place(rows))
        values = rows[metric].to_numpy()
        if (values == 0).all():
            axes.text(0, y, " 0 ", va="center", ha="center", fontsize=9, fontweight="bold", bbox=_BOX)
            continue
        axes.scatter(values, [y] * len(values), s=14, color=look["color"], marker=look["marker"], alpha=0.6, zorder=3)
        axes.plot([values.mean()] * 2, [y - 0.32, y + 0.32], color=look["color"], linewidth=2, zorder=4)
    most = max((abs(rows[metric]).max() for _, rows in groups), default=0)
    edge = 1.15 * max(most, sd if np.isfinite(sd) else 0, _LEAST)  # room for a mark that lies there
    axes.set_xlim(-edge, edge)
    axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(False, axis="y")
    axes.set_xlabel(f"Δ {metric}")


_BOX = {"facecolor": plotting.PAPER, "edgecolor": "none", "pad": 0.5}


def answers(frame: pd.DataFrame) -> list[dict]:
    """The consistency rows: NestPipe's techniques, a stale engine, 2D sparse parallelism."""
    found, model = summary(frame, METRICS).set_index(["case", "dtype"]), frame["model"].iloc[0]
    ranked = f"{model}, {int(frame['samples'].iloc[0]):,} held-out samples"
    about = f"{ranked}, mean over {frame['seed'].nunique()} seed(s)"
    exact_seeds = frame.loc[frame["case"] == NESTPIPE, "seed"].nunique()
    single, double = (largest(frame, NESTPIPE, dtype, CONSISTENCY) for dtype in (FLOAT32, FLOAT64))
    note = f"{ranked}; any metric of {exact_seeds} seed(s): largest change {double:.2g} in float64, "
    note += f"where only {NESTPIPE} differs; "
    note += f"{single:.2g} in float32, where rounding of sums in another order is in it"
    given = [] if np.isnan(double) else [answer("NP-P-006", double, "measured", note)]
    if (STALE, FLOAT32) in found.index:
        row = found.loc[STALE, FLOAT32]
        obtained = [row["Δ HR@10"], row["Δ HR@50"]]
        given.append(answer("NP-P-055", obtained, "measured", f"{about}; rows one update old"))
    if (TWO_D, FLOAT32) in found.index:
        row = found.loc[TWO_D, FLOAT32]
        changes = sorted(row[f"Δ {metric}"] for metric in CONSISTENCY)
        given.append(answer("NP-P-056", [changes[0], changes[-1]], "measured", f"{about}; two replica groups"))
    return given


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """HR@10 of the plain loop and what each technique changes of it, in float32; of exact ones in float64 too."""
    found = summary(frame, METRICS)
    plain = found[(found["case"] == PLAIN) & (found["dtype"] == FLOAT32)].iloc[0]
    figures = {"hr10_plain": float(plain["HR@10"])} | changes(found, "HR@10", "hr10_change")
    figures["exact_largest_change_float64"] = largest(frame, NESTPIPE, FLOAT64, CONSISTENCY)
    return figures


def changes(found: pd.DataFrame, metric: str, name: str) -> dict[str, float]:
    """What each technique changes of a metric in float32, as `<name>_<technique>`; `found` is a summary."""
    rows = found[(found["case"] != PLAIN) & (found["dtype"] == FLOAT32)]
    return {f"{name}_{_plain_name(row['case'])}": float(row[f"Δ {metric}"]) for _, row in rows.iterrows()}


def _plain_name(case: str) -> str:
    return case.lower().replace(" + ", "_").replace(" ", "_").replace("-", "_")
