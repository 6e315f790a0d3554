"""Trainings side by side: means and spreads over seeds, differences to the plain loop of the same seed and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nestlab.experiments.accuracy.compared import PLAIN

METRICS = ("HR@10", "HR@50", "NDCG@10", "NDCG@50", "MRR")
CONSISTENCY = METRICS[:4]  # those of the systems' papers
FLOAT32, FLOAT64 = "float32", "float64"


def differences(frame: pd.DataFrame, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """The same rows with `metrics` less those of `plain` of the same seed and dtype, without the rows of `plain`."""
    plain = frame[frame["case"] == PLAIN].set_index(["dtype", "seed"])
    rows = frame[frame["case"] != PLAIN].copy()
    at = pd.MultiIndex.from_frame(rows[["dtype", "seed"]])
    for metric in metrics:
        rows[metric] = rows[metric].to_numpy() - plain.loc[at, metric].to_numpy()
    return rows.reset_index(drop=True)


def spread(values: pd.Series) -> float:
    """The standard deviation over seeds (n − 1); NaN where there is one."""
    return float(values.std(ddof=1))


def summary(frame: pd.DataFrame, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """A row a case and dtype, in the order of first appearance: mean and spread of each metric, and of its difference
    to plain (NaN for plain itself); `changed`: share of the held-out samples whose rank, or prediction, is another, the
    most of any seed."""
    apart = differences(frame, metrics).groupby(["case", "dtype"], sort=False)
    rows = []
    for (case, dtype), part in frame.groupby(["case", "dtype"], sort=False):
        row = {"case": case, "dtype": dtype, "seeds": len(part), "declared": part["declared"].iloc[0]}
        for metric in metrics:
            row |= {metric: part[metric].mean(), f"{metric} sd": spread(part[metric])}
            mine = apart.get_group((case, dtype))[metric] if case != PLAIN else pd.Series([np.nan])
            row |= {f"Δ {metric}": mine.mean(), f"Δ {metric} sd": spread(mine)}
            row[f"Δ {metric} largest"] = mine.abs().max()
        changed = part["changed"] / part["samples"]
        rows.append(row | {"changed": changed.max(), "loss": part["loss"].mean()})
    return pd.DataFrame(rows)


def largest(frame: pd.DataFrame, case: str, dtype: str, metrics: Sequence[str] = CONSISTENCY) -> float:
    """The largest difference to plain of any of the metrics, of any seed, in absolute value; NaN: not tried."""
    apart = differences(frame, metrics)
    rows = apart[(apart["case"] == case) & (apart["dtype"] == dtype)]
    return float(rows[list(metrics)].abs().to_numpy().max()) if len(rows) else float("nan")
