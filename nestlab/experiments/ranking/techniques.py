"""What each technique changes of the several-task model's predictions, training by training beside the plain loop.

Predicted before the first run: DBP has the plain loop's bits; FWP, with or without clustering, differs by rounding
alone, in float64 by less than TOLERANCE; one stale update and int8 rows cost less than the spread over seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab.experiments.accuracy import techniques as drawn
from nestlab.experiments.compared import PLAIN
from nestlab.experiments.nestpipe.cases import NESTPIPE
from nestlab.experiments.over_seeds import FLOAT32, FLOAT64, differences, largest, spread, summary
from nestlab.experiments.ranking.looking import METRICS
from nestlab.experiments.tables import Said

# Largest difference of any weight after a whole training in float64 that other orders of sums may leave.
TOLERANCE = 1e-9


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """As the accuracy study's, with the largest difference of a weight of exact ones."""
    found = drawn.digest(frame, METRICS, METRICS, "rows whose predictions change, %")
    weights = frame.groupby(["case", "dtype"], sort=False)["weight_difference"].max()
    found.insert(3, "largest difference of a weight", list(weights))
    return found


def says(frame: pd.DataFrame) -> Said:
    """Whether exact is exact, what rounding alone does, and what inexact ones cost, as far as seeds can tell."""
    apart, plain = differences(frame, METRICS), frame[(frame["case"] == PLAIN) & (frame["dtype"] == FLOAT32)]
    exact = apart[apart["declared"].str.startswith("exact")]
    sd = spread(plain["AUC"])
    text = f"The plain loop's AUC of clicks is {plain['AUC'].mean():.4f}"
    text += ", of one seed." if np.isnan(sd) else f", with a standard deviation of {sd:.4f} over {len(plain)} seeds."
    lines = [text, _bits(exact), _rounding(exact), drawn.costs(apart, "AUC")]
    return Said(" ".join(filter(None, lines)))


def _bits(exact: pd.DataFrame) -> str:
    single = exact[exact["dtype"] == FLOAT32].groupby("case", sort=False)["equal_to_plain"].all()
    names = [name for name, equal in single.items() if equal]
    if not names:
        return "**No technique ends with the plain loop's bits.**"
    return f"In float32 *{', '.join(names)}* ends with the plain loop's bits, optimizer states too."


def _rounding(exact: pd.DataFrame) -> str:
    """Of those whose sums stand in another order: in float64 against TOLERANCE, and what float32 makes of it."""
    double = exact[exact["dtype"] == FLOAT64]
    single = exact[(exact["dtype"] == FLOAT32) & ~exact["equal_to_plain"].astype(bool)]
    text = ""
    if len(double):
        weight, metric = double["weight_difference"].max(), double[list(METRICS)].abs().to_numpy().max()
        moved = f"no metric differs by more than {metric:.1e}" if metric else "no metric differs at all"
        place = "within" if weight <= TOLERANCE else "**beyond**"
        text = (
            f"In float64 *{', '.join(double['case'].unique())}* end with weights within {weight:.1e} of the plain "
            f"loop's, {place} the tolerance of {TOLERANCE:g}; {moved}."
        )
    if len(single):
        most = single[list(METRICS)].abs().to_numpy().max()
        text += (
            f" In float32 the same rounding, step by step, moves a metric by up to {most:.1e}: smaller changes may be "
            "rounding as well."
        )
    return text


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """As the accuracy study's: a row a case and dtype, a panel a metric, the difference to plain of the same seed."""
    return drawn.plot(frame, title, METRICS)


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """What each technique changes of the AUC in float32, and how far weights are in float64."""
    figures = drawn.changes(summary(frame, METRICS), "AUC", "auc_change")
    figures["exact_largest_change_float64"] = largest(frame, NESTPIPE, FLOAT64, METRICS)
    double = frame[frame["dtype"] == FLOAT64]["weight_difference"]
    return figures | {"exact_weight_difference_float64": float(double.max())}
