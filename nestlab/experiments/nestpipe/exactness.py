"""What each row of the ablation ends with, against the plain loop: 0 where bits are claimed to be equal."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.nestpipe.ablation import STALE
from nestlab.experiments.nestpipe.cases import BOTH, NESTPIPE
from nestlab.experiments.tables import Said, answer, chosen

ROUNDING = 1e-10  # in float64: what another order of sums may change


def joined(ablation: pd.DataFrame, float64: pd.DataFrame) -> pd.DataFrame:
    """A row a case: the largest difference of any weight to `plain` over all rounds and settings (float32), the same
    in float64, whether bits are equal to plain's and to those of the same micro-batches in order, what is declared, and
    keys_come_back: a batch, those in batches t − 2 and t but not t − 1.
    """
    rows = []
    for case, part in ablation.groupby("case", sort=False):
        told = part["exactness"].dropna() if "exactness" in part else []
        in_order = part["equal_in_order"].dropna()
        rows.append(
            {
                "case": case,
                "difference_float32": part["difference"].max(),
                "bit_equal_to_plain": bool(part["bit_equal"].all()),
                "bit_equal_in_order": bool(in_order.all()) if len(in_order) else None,
                "declared": told.iloc[0] if len(told) else "another program: sums in another order",
                "keys_come_back": part["keys_come_back"].max() if "keys_come_back" in part else None,
                "how": "measured",
            }
        )
    return pd.DataFrame(rows).merge(float64, on="case", how="left")


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Dots on a logarithmic scale; where there is no difference at all, a 0 at the left edge."""
    with plotting.style():
        figure = plotting.new_figure(9.5, 1.4 + 0.42 * len(frame))
        axes = figure.add_subplot()
        columns = {"difference_float32": "in float32", "difference_float64": "in float64"}
        least = 1e-18
        for number, (column, label) in enumerate(columns.items()):
            at = np.arange(len(frame)) + (number - 0.5) * 0.38
            values = frame[column].to_numpy(dtype=float)
            look = plotting.series_style(number)
            shown = np.where(values > 0, values, np.nan)
            axes.scatter(shown, at, s=26, color=look["color"], marker=look["marker"], label=label, zorder=3)
            for y, value in zip(at, values, strict=True):
                _mark(axes, y, value, least)
        rows = np.arange(len(frame)) + 0.19  # of the float64 dots alone: float32 rounds far more coarsely
        label = "1e-10: less is rounding in float64"
        axes.vlines([ROUNDING] * len(rows), rows - 0.19, rows + 0.19, color=plotting.INK, linewidth=1.6, label=label)
        axes.set_yticks(range(len(frame)), frame["case"])
        axes.set(xscale="log", xlim=(least, 10), ylim=(len(frame) - 0.5, -0.5))
        axes.set_xlabel("largest difference of any weight to plain (logarithmic; 0: equal bits)")
        axes.grid(False, axis="y")
        axes.set_title(title)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _mark(axes, y: float, value: float, least: float) -> None:
    if np.isnan(value):
        axes.text(least * 2, y, "not trained in float64", va="center", fontsize=7)
    elif value == 0:
        axes.text(least * 2, y, "0", va="center", fontsize=8, fontweight="bold")
    else:
        axes.text(value * 2.2, y, f"{value:.1e}", va="center", fontsize=7)


def says(frame: pd.DataFrame) -> Said:
    exact, inexact = (
        frame[frame["declared"].str.startswith("exact")],
        frame[frame["declared"].str.startswith("inexact")],
    )
    zero = exact[exact["bit_equal_to_plain"]]["case"]
    worst = exact["difference_float64"].max()
    order = "all have equal bits" if exact["bit_equal_in_order"].all() else "**not all have equal bits**"
    return Said(
        f"Bit-equal to the plain loop, optimizer states too: *{', '.join(zero) or 'none'}*. The other exact "
        f"rows add the "
        f"same gradients in another order. Against the same micro-batches one after another they {order}"
        f", and in float64 what is left of a difference to plain is at most {worst:.1e}. What is declared "
        f"inexact stays "
        f"apart in float64 too: "
        + ", ".join(f"*{row.case}* {row.difference_float64:.1g}" for row in inexact.itertuples())
        + ". It is small or large by this model's scale alone; what it means for ranking is a study of its own."
        + _alike(frame)
    )


def _alike(frame: pd.DataFrame) -> str:
    """Why several rows may show the same largest difference."""
    cut = frame[frame["case"].isin(["FWP", BOTH, f"{BOTH} + kmeans", NESTPIPE])]
    same = cut[cut.duplicated("difference_float64", keep=False)]
    if same.empty:
        return ""
    groups = [", ".join(rows["case"]) for _, rows in same.groupby("difference_float64", sort=False)]
    text = (
        f" The same largest difference in float64 have {'; '.join(f'*{each}*' for each in groups)}: it is that of a "
        "single weight, whose summands fall alike in these rows (pipelining batches changes no sum at all)"
    )
    if same["mean_difference_float64"].nunique() > 1:
        text += "; the mean over all weights, in the table, tells the orders of samples apart"
    return text + "."


_DIGEST = {
    "case": "case",
    "difference_float32": "largest difference, float32",
    "difference_float64": "largest difference, float64",
    "mean_difference_float64": "mean difference, float64",
    "bit_equal_to_plain": "bits equal to plain",
    "bit_equal_in_order": "bits equal to the same micro-batches in order",
    "declared": "declared",
    "keys_come_back": "keys a batch that skip one",
}


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def answers(frame: pd.DataFrame) -> list[dict]:
    """The claims on equality, and those on drift where something is stale."""
    rows = frame.set_index("case")
    dbp, full, both = rows.loc["DBP"], rows.loc[NESTPIPE], rows.loc[BOTH]
    stale = float(rows.loc[STALE, "difference_float64"])
    late = f"one update late; largest difference in float64 {stale:.2g}"
    window = rows.loc["FWP"]
    return [
        answer("NP-P-020", bool(dbp["bit_equal_to_plain"] and dbp["keys_come_back"] > 0), "measured", _pattern(dbp)),
        answer("RL-P-029", bool(dbp["bit_equal_to_plain"]), "measured", "with the copy between the two buffers"),
        answer("NP-P-021", _sums(window), "measured", _sums_note(window)),
        answer("NP-P-028", _sums(full), "measured", _sums_note(full)),
        answer("NP-P-029", bool(both["bit_equal_in_order"]), "measured", _sums_note(both)),
        answer("NP-P-026", stale, "measured", late),
        answer("NP-P-034", stale, "measured", late),
    ]


def _pattern(row: pd.Series) -> str:
    """What the copy between two buffers cannot repair is in these batches too."""
    return (
        f"every bit, states too, lanes against plain; {row['keys_come_back']:,.0f} keys a batch are in "
        "batches t − 2 and t but not t − 1"
    )


def _sums(row: pd.Series) -> bool:
    return bool(row["bit_equal_in_order"] and row["difference_float64"] <= ROUNDING)


def _sums_note(row: pd.Series) -> str:
    same = "bits equal" if row["bit_equal_in_order"] else "bits differ"
    return f"{same} to the micro-batches in order; {row['difference_float64']:.1e} to one full batch in float64"
