"""Trainings over seeds: means and spreads, differences to the plain loop of the same seed and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nestlab.experiments.compared import PLAIN

FLOAT32, FLOAT64 = "float32", "float64"


def spread(values: pd.Series) -> float:
    """The standard deviation over seeds (n − 1); NaN where there is one."""
    return float(values.std(ddof=1))


def over_seeds(
    frame: pd.DataFrame, by: Sequence[str], metrics: Sequence[str], first: Sequence[str] = (), means: Sequence[str] = ()
) -> pd.DataFrame:
    """A row a group, in the order of first appearance: `seeds`, of each metric its mean and, as `<metric> sd`, its
    spread; of the columns `first` the first value, of `means` the mean."""
    rows = []
    for names, part in frame.groupby(list(by), sort=False):
        row = [*names, len(part), *(part[name].iloc[0] for name in first), *(part[name].mean() for name in means)]
        rows.append([*row, *(value for metric in metrics for value in (part[metric].mean(), spread(part[metric])))])
    spreads = [name for metric in metrics for name in (metric, f"{metric} sd")]
    return pd.DataFrame(rows, columns=[*by, "seeds", *first, *means, *spreads])


def with_spreads(found: pd.DataFrame, metric: str, form: str = ".4f") -> list[str]:
    """Of every row of a frame of `over_seeds` its mean ± spread, as text."""
    return [_with_spread(*each, form) for each in zip(found[metric], found[f"{metric} sd"], strict=True)]


def _with_spread(mean: float, sd: float, form: str) -> str:
    """A difference that is nothing at all is a plain 0."""
    if np.isnan(mean):
        return ""
    if form.startswith("+") and mean == 0 and (np.isnan(sd) or sd == 0):
        return "0"
    return f"{mean:{form}}" + ("" if np.isnan(sd) else f" ± {sd:.4f}")


def differences(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The same rows with `metrics` less those of `plain` of the same seed and dtype, without the rows of `plain`."""
    plain = frame[frame["case"] == PLAIN].set_index(["dtype", "seed"])
    rows = frame[frame["case"] != PLAIN].copy()
    at = pd.MultiIndex.from_frame(rows[["dtype", "seed"]])
    for metric in metrics:
        rows[metric] = rows[metric].to_numpy() - plain.loc[at, metric].to_numpy()
    return rows.reset_index(drop=True)


def summary(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """A row a case and dtype, in the order of first appearance: mean and spread of each metric, and of its difference
    to plain (NaN for plain itself); `changed`: share of the held-out samples whose rank, or prediction, is another, the
    most of any seed."""
    by = ["case", "dtype"]
    apart = over_seeds(differences(frame, metrics), by, metrics).drop(columns="seeds").set_index(by)
    found = over_seeds(frame, by, metrics, first=["declared"], means=["loss"]).join(apart.add_prefix("Δ "), on=by)
    shares = (frame["changed"] / frame["samples"]).groupby([frame[name] for name in by], sort=False)
    return found.assign(changed=shares.max().to_numpy())


def largest(frame: pd.DataFrame, case: str, dtype: str, metrics: Sequence[str]) -> float:
    """The largest difference to plain of any of the metrics, of any seed, in absolute value; NaN: not tried."""
    apart = differences(frame, metrics)
    rows = apart[(apart["case"] == case) & (apart["dtype"] == dtype)]
    return float(rows[list(metrics)].abs().to_numpy().max()) if len(rows) else float("nan")
