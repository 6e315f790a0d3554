"""The statistics of KuaiRand's logs and tables by which a twin is compared with them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.data.frequency import top_shares
from nestlab.data.kuairand_format import COLUMNS, beijing_hour, row_hashes
from nestlab.data.kuairand_synth_tables import MISSING
from nestlab.data.twin_chance import effective, top_share_errors
from nestlab.data.twin_statistics import Statistic, differing, ks_of, mean, rate, reuses, share, together, tv_of

_TOPS = {"0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05, "10 %": 0.1, "20 %": 0.2}
# What modelling may miss, as a part of the rate.
_RATES = {"is_click": 0.03, "long_view": 0.04, "is_like": 0.10, "is_follow": 0.15, "is_comment": 0.15}
_RATES |= {"is_forward": 0.15, "is_hate": 0.15, "is_profile_enter": 0.10}
_BURSTS = "bursts within minutes, which the twin has no more of than its sessions"
_MONTH = "the twin copies the whole month, and the sample is its last fortnight"
_LENGTHS = "lengths are lognormal as data.md asks; real ones have more users of few rows"
_PLAYED = "what is not clicked in this tab is played less often by the twin's one law for all its users"
_ABSENT = "chance of which videos lack it: a few that are shown often decide"


def kuairand_statistics(log: pd.DataFrame) -> list[Statistic]:
    """Of rows of a log, in any order."""
    by_time = log.sort_values("time_ms", kind="stable")
    by_user = log.sort_values(["user_id", "time_ms"], kind="stable")
    return [*_counts(log), *_labels(log), *_plays(log), *_times(log, by_user), *_reuses(by_time)]


def _counts(log: pd.DataFrame) -> list[Statistic]:
    videos, users = (log[c].value_counts().to_numpy() for c in ("video_id", "user_id"))
    parts = tuple(_TOPS.values())
    tops = zip(_TOPS, top_shares(videos, parts), top_share_errors(videos, parts), strict=True)
    return [
        *(share(f"videos: top {name}", top, 0.04, error) for name, top, error in tops),
        rate("videos: seen once", videos == 1, 0.20),
        ks_of("videos: KS of counts", videos, 0.03),
        mean("users: mean length (rows)", users, 0.05),
        ks_of("users: KS of lengths", users, 0.03, _LENGTHS),
    ]


def _labels(log: pd.DataFrame) -> list[Statistic]:
    clicked = (log["is_click"] == 1).to_numpy()
    found = [rate(f"rate of {name}", log[name].to_numpy() == 1, part) for name, part in _RATES.items()]
    found.append(rate("long_view given click", log["long_view"].to_numpy()[clicked] == 1, 0.05))
    found.append(tv_of("tabs: TV of shares", log["tab"].to_numpy(), 0.02, _MONTH))
    for tab in (0, 1, 2, 4, 6):
        rows = log[log["tab"] == tab]
        found.append(rate(f"tab {tab}: click rate", rows["is_click"].to_numpy() == 1, 0.03))
        found.append(rate(f"tab {tab}: zero plays", rows["play_time_ms"].to_numpy() == 0, 0.10, _PLAYED))
    return found


def _plays(log: pd.DataFrame) -> list[Statistic]:
    play, duration = log["play_time_ms"].to_numpy(), log["duration_ms"].to_numpy()
    known = duration > 0
    valid = np.where(duration > 7_000, play > 7_000, play >= duration)
    long = np.where(duration > 18_000, play >= 18_000, play >= duration)
    # A video's rows share its duration: they are worth fewer values than there are videos.
    worth = effective(log.loc[known, "video_id"].value_counts().to_numpy())
    return [
        by_video("duration 0", ~known, log["video_id"].to_numpy()),
        ks_of("duration: KS", duration[known], 0.01, worth=worth),
        ks_of("play: KS, of those above 0", play[play > 0], 0.04),
        ks_of("play / duration: KS", play[known] / duration[known], 0.04),
        rate("play beyond duration", play[known] > duration[known], 0.12),
        rate("click follows the rule", valid == log["is_click"].to_numpy(), 0.15),
        rate("long_view follows the rule", long == log["long_view"].to_numpy(), 0.15),
    ]


def by_video(name: str, hits: np.ndarray, videos: np.ndarray) -> Statistic:
    """The share of hits [n], which are a video's own: its error is that of a ratio of sums over videos."""
    _, of = np.unique(videos, return_inverse=True)
    counts, hit = np.bincount(of), np.bincount(of, weights=hits)
    p = float(hit.sum() / counts.sum())
    return share(name, p, 0.10, float(np.sqrt(((hit - p * counts) ** 2).sum()) / counts.sum()), _ABSENT)


def _times(log: pd.DataFrame, by_user: pd.DataFrame) -> list[Statistic]:
    hour, told = beijing_hour(log["time_ms"].to_numpy()), log["hourmin"].to_numpy() // 100
    same = np.diff(by_user["user_id"].to_numpy()) == 0
    gap = np.diff(by_user["time_ms"].to_numpy())[same]
    return [
        rate("hourmin an hour ahead", (hour + 1) % 24 == told, 0.03),
        tv_of("hours: TV", hour, 0.05),
        tv_of("days: TV", log["date"].to_numpy(), 0.03),
        rate("same ms as the user's last row", gap == 0, 0.10),
        rate("exact copies", copies([log[name].to_numpy() for name in COLUMNS]), 0.10, _MONTH),
        ks_of("gaps: KS", gap, 0.10),
    ]


def copies(columns: list[np.ndarray]) -> np.ndarray:
    """[n] bool: whether an equal row stands before, of columns [n] of integers."""
    _, first = np.unique(row_hashes(columns), return_index=True)
    copied = np.ones(len(columns[0]), bool)
    copied[first] = False
    return copied


def _reuses(by_time: pd.DataFrame) -> list[Statistic]:
    keys, batches = ("video_id", "user_id"), (256, 1_024, 4_096, 16_384)
    made = ((name, by_time[name].to_numpy(), batch) for name in keys for batch in batches)
    return [line for name, column, batch in made for line in reuses(name, [column], batch, (0.05, 0.07), _BURSTS)]


def table_statistics(users: pd.DataFrame, videos: pd.DataFrame) -> list[Statistic]:
    """Of the two tables: NaN, −124, and the words of how active users are."""
    found, missing = [], {}
    for frame in (users, videos):
        for name in frame.columns:
            gone = frame[name].isna().to_numpy()
            missing[name] = gone
            if gone.any():
                found.append(rate(f"{name}: NaN", gone, 0.05))
    sentinels = {name for name in users.columns if (users[name] == MISSING).any()}
    words = pd.factorize(users["user_active_degree"], sort=True)[0]
    of_users = {name: gone for name, gone in missing.items() if name in users.columns}
    return [
        *sorted(found, key=lambda line: line.name),
        differing("columns with NaN", {name for name, gone in missing.items() if gone.any()}),
        together("columns of users NaN together", of_users),
        differing("columns of users with -124", sentinels),
        rate("is_live_streamer: -124", (users["is_live_streamer"] == MISSING).to_numpy(), 0.03),
        tv_of("user_active_degree: TV", words, 0.01),
    ]
