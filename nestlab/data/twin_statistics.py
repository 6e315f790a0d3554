"""The statistics by which a twin is compared with its real sample, and what each may differ by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from nestlab.data.criteo_format import DENSE_NAMES, FEATURES
from nestlab.data.frequency import top_shares
from nestlab.data.kuairand_format import beijing_hour

_TOPS = {"0.1 %": (0.001, 0.02), "1 %": (0.01, 0.05), "5 %": (0.05, 0.06), "10 %": (0.1, 0.06), "20 %": (0.2, 0.05)}
_RATES = {"is_click": 0.02, "long_view": 0.03, "is_like": 0.005, "is_follow": 0.001, "is_comment": 0.001}
_RATES |= {"is_forward": 0.001, "is_hate": 0.001, "is_profile_enter": 0.005}
_BURSTS = "bursts within minutes, which the twin has no more of than its sessions"
_MONTH = "the twin copies the whole month, and the sample is its last fortnight"
_TAB0 = "one shift for all tabs: the signal's spread clicks more of a tab that is clicked seldom"
_TAIL = "the tail is one power law, no id of it above the commonest; the real one bends"
_LENGTHS = "lengths are lognormal as data.md asks; real ones have more users of few rows"


@dataclass(frozen=True)
class Statistic:
    """One figure of a sample, or a distribution of which the distance counts (`against`: (sample, sample) → 0 … 1)."""

    name: str
    value: float
    tolerance: float
    why: str = "not explained"
    sample: np.ndarray | None = None
    against: Callable[[np.ndarray, np.ndarray], float] | None = None


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance: the largest difference of the two distribution functions."""
    both = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def tv(a: np.ndarray, b: np.ndarray) -> float:
    """Total variation of two samples of few values: half the sum of the shares' differences."""
    values = np.union1d(a, b)
    shares = [np.bincount(np.searchsorted(values, x), minlength=len(values)) / len(x) for x in (a, b)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def reuse(keys: np.ndarray, batch: int) -> tuple[float, float]:
    """(unique over look-ups of a batch; share of a batch's unique keys that the batch before had), means."""
    batches = [np.unique(keys[i : i + batch]) for i in range(0, len(keys) - batch + 1, batch)]
    overlap = [np.isin(now, last).mean() for last, now in pairwise(batches)]
    return float(np.mean([len(b) for b in batches]) / batch), float(np.mean(overlap)) if overlap else 0.0


def kuairand_statistics(log: pd.DataFrame) -> list[Statistic]:
    """Of rows of a log, in any order."""
    by_time = log.sort_values("time_ms", kind="stable")
    by_user = log.sort_values(["user_id", "time_ms"], kind="stable")
    return [*_counts(log), *_labels(log), *_plays(log), *_times(log, by_user), *_reuses(by_time)]


def _counts(log: pd.DataFrame) -> list[Statistic]:
    videos, users = (log[c].value_counts().to_numpy() for c in ("video_id", "user_id"))
    shares = top_shares(videos, tuple(part for part, _ in _TOPS.values()))
    found = [Statistic(f"videos: top {n}", s, _TOPS[n][1]) for n, s in zip(_TOPS, shares, strict=True)]
    return [
        *found,
        Statistic("videos: seen once", float((videos == 1).mean()), 0.06),
        Statistic("videos: KS of counts", 0.0, 0.08, sample=videos, against=ks),
        Statistic("users: mean length", float(users.mean()), 1.5),
        Statistic("users: KS of lengths", 0.0, 0.08, _LENGTHS, users, ks),
    ]


def _labels(log: pd.DataFrame) -> list[Statistic]:
    clicked = log["is_click"] == 1
    found = [Statistic(f"rate of {name}", float(log[name].mean()), off) for name, off in _RATES.items()]
    found.append(Statistic("long_view given click", float(log.loc[clicked, "long_view"].mean()), 0.03))
    found.append(Statistic("tabs: TV of shares", 0.0, 0.03, why=_MONTH, sample=log["tab"].to_numpy(), against=tv))
    for tab in (0, 1, 2, 4, 6):
        rows = log[log["tab"] == tab]
        found.append(Statistic(f"tab {tab}: click rate", float(rows["is_click"].mean()), 0.04))
        found.append(Statistic(f"tab {tab}: zero plays", float((rows["play_time_ms"] == 0).mean()), 0.04, _TAB0))
    return found


def _plays(log: pd.DataFrame) -> list[Statistic]:
    play, duration = log["play_time_ms"].to_numpy(), log["duration_ms"].to_numpy()
    known = duration > 0
    valid = np.where(duration > 7_000, play > 7_000, play >= duration)
    long = np.where(duration > 18_000, play >= 18_000, play >= duration)
    return [
        Statistic("duration 0", float((~known).mean()), 0.01),
        Statistic("duration: KS", 0.0, 0.06, sample=duration[known], against=ks),
        Statistic("play: KS, of those above 0", 0.0, 0.06, sample=play[play > 0], against=ks),
        Statistic("play / duration: KS", 0.0, 0.06, sample=play[known] / duration[known], against=ks),
        Statistic("play beyond duration", float((play[known] > duration[known]).mean()), 0.03),
        Statistic("click follows the rule", float((valid == log["is_click"]).mean()), 0.02),
        Statistic("long_view follows the rule", float((long == log["long_view"]).mean()), 0.02),
    ]


def _times(log: pd.DataFrame, by_user: pd.DataFrame) -> list[Statistic]:
    hour, told = beijing_hour(log["time_ms"].to_numpy()), log["hourmin"].to_numpy() // 100
    same = np.diff(by_user["user_id"].to_numpy()) == 0
    gap = np.diff(by_user["time_ms"].to_numpy())[same]
    return [
        Statistic("hourmin an hour ahead", float(((hour + 1) % 24 == told).mean()), 0.01),
        Statistic("hours: TV", 0.0, 0.06, sample=hour, against=tv),
        Statistic("days: TV", 0.0, 0.04, sample=log["date"].to_numpy(), against=tv),
        Statistic("same ms as the user's last row", float((gap == 0).mean()), 0.01),
        Statistic("exact copies", float(log.duplicated().mean()), 0.006, _MONTH),
        Statistic("gaps: KS", 0.0, 0.12, sample=gap, against=ks),
    ]


def _reuses(by_time: pd.DataFrame) -> list[Statistic]:
    found = []
    for column in ("video_id", "user_id"):
        for batch in (256, 1_024, 4_096, 16_384):
            unique, overlap = reuse(by_time[column].to_numpy(), batch)
            found.append(Statistic(f"{column}, {batch:,}: unique", unique, 0.06, _BURSTS))
            found.append(Statistic(f"{column}, {batch:,}: in the last batch", overlap, 0.06, _BURSTS))
    return found


def criteo_statistics(rows: pd.DataFrame) -> list[Statistic]:
    """Of rows in the order of the file, as `criteo_format.SCHEMA` or text ids."""
    negative = [name for name in DENSE_NAMES if (rows[name] < 0).any()]
    found = [
        Statistic("click rate", float(rows["label"].mean()), 0.06, "the real rows are the file's first"),
        Statistic("columns with negatives", float(len(negative)), 0),
        Statistic("share of negatives", float((rows[negative] < 0).mean().sum()), 0.02),
        Statistic("groups missing together", float(len({tuple(c) for c in rows.isna().to_numpy().T})), 1),
    ]
    for name in (*DENSE_NAMES, *FEATURES):
        values = rows[name].dropna()
        found.append(Statistic(f"{name}: missing", float(rows[name].isna().mean()), 0.04))
        if name in DENSE_NAMES:
            found.append(Statistic(f"{name}: KS", 0.0, 0.08, sample=values.to_numpy(float), against=ks))
            continue
        counts = values.value_counts().to_numpy()
        found.append(Statistic(f"{name}: top share", float(counts.max() / counts.sum()), 0.09))
        found.append(Statistic(f"{name}: distinct / values", len(counts) / len(values), 0.06, _TAIL))
    return [*found, *_all_reuses(rows)]


def _all_reuses(rows: pd.DataFrame) -> list[Statistic]:
    """Over all categorical columns together, missing values left out of neither."""
    found = []
    for batch in (256, 1_024):
        if len(rows) < 2 * batch:
            continue
        pairs = np.array([reuse(pd.factorize(rows[name])[0], batch) for name in FEATURES])
        unique, overlap = pairs[:, 0], pairs[:, 1]
        found.append(Statistic(f"all columns, {batch:,}: unique", float(unique.mean()), 0.04))
        found.append(
            Statistic(
                f"all columns, {batch:,}: in the last batch", float(unique @ overlap / unique.sum()), 0.05, _BURSTS
            )
        )
    return found
