"""What `nestlab data describe` says of KuaiRand: rates, times, tabs, columns, files, the log's oddities in numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nestlab.data import statistics
from nestlab.data.kuairand_batches import DENSE_NAMES, FEATURES, LABELS
from nestlab.data.kuairand_format import BEIJING_HOURS, beijing_hour
from nestlab.data.loader import array_of


def tables(rows: pa.Table, columns: dict[str, pa.Array], manifest: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Over the rows given: `time`, `plays` (one row each), `labels`, `tabs`, `dense`, `categorical`; `words` of the
    whole feature tables.
    """
    log = {name: array_of(rows, name).to_numpy() for name in rows.column_names}
    return {
        "time": pd.DataFrame([_time(log)]),
        "plays": pd.DataFrame([_plays(log)]),
        "labels": pd.DataFrame([_label(name, log) for name in LABELS]),
        "tabs": _tabs(log),
        "dense": pd.DataFrame([statistics.dense(n, pa.chunked_array([columns[n]])) for n in DENSE_NAMES]),
        "categorical": pd.DataFrame([statistics.categorical(n, pa.chunked_array([columns[n]])) for n in FEATURES]),
        "words": pd.DataFrame(_words(manifest), columns=["column", "word", "rows"]),
    }


def inputs(manifest: dict[str, Any], files: dict[str, list[str]]) -> dict[str, pd.DataFrame]:
    """`files`: every file of the data set with its state; `rejected`: lines set aside by reason."""
    read = {entry["name"]: entry for entry in manifest["inputs"]}
    columns = ("role", "bytes", "rows_in", "rows_rejected", "duplicates", "sha256")
    found = [
        {"file": name, "state": state, **{c: read[name].get(c) for c in columns if name in read}}
        for state, names in files.items()
        for name in names
    ]
    rejected = {**manifest["rejected"], **{f"{k} (tables)": n for k, n in manifest["rejected_in_tables"].items()}}
    return {
        "files": pd.DataFrame(found).convert_dtypes(),
        "rejected": statistics.frame(rejected, "reason", "rows"),
    }


def beijing(time_ms: int) -> datetime | None:
    """None for a time that no calendar holds."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None) + timedelta(hours=BEIJING_HOURS)
    except (OverflowError, ValueError, OSError):
        return None


def _time(log: dict[str, np.ndarray]) -> dict[str, object]:
    time, hour = log["time_ms"], beijing_hour(log["time_ms"])
    ahead = log["hourmin"] // 100 == (hour + 1) % 24
    # Neighbours among a user's own events: places that follow one another.
    by_place = np.argsort(log["place"])
    follows = (np.diff(log["place"][by_place]) == 1) & (np.diff(log["user_id"][by_place]) == 0)
    gaps = np.diff(time[by_place])[follows]
    return {
        "first (Beijing)": beijing(int(time[0])),
        "last (Beijing)": beijing(int(time[-1])),
        "hourmin_ahead": ahead.mean(),
        "date_differs": (log["date"] != _dates(time)).mean(),
        "same_ms_as_user_s_last": (gaps == 0).mean() if len(gaps) else 0.0,
        "median_gap_s": float(np.median(gaps)) / 1000 if len(gaps) else 0.0,
        "peak_hour": int(np.bincount(hour, minlength=24).argmax()),
    }


def _dates(time_ms: np.ndarray) -> np.ndarray:
    """[n] int64 YYYYMMDD in Beijing."""
    days = (time_ms + BEIJING_HOURS * 3_600_000).astype("datetime64[ms]").astype("datetime64[D]")
    unique, at = np.unique(days, return_inverse=True)
    return np.array([int(str(day).replace("-", "")) for day in unique], np.int64)[at]


def _plays(log: dict[str, np.ndarray]) -> dict[str, object]:
    play, duration = log["play_time_ms"], log["duration_ms"]
    known = duration > 0
    ratio = play[known] / duration[known]
    return {
        "zero_play": (play == 0).mean(),
        "zero_duration": (~known).mean(),
        "play_beyond_duration": (play[known] > duration[known]).sum() / len(play),
        "watch_ratio_median": float(np.median(ratio)) if len(ratio) else 0.0,
        "watch_ratio_max": float(ratio.max()) if len(ratio) else 0.0,
        "at_random": log["is_rand"].mean(),
    }


def _label(name: str, log: dict[str, np.ndarray]) -> dict[str, object]:
    flag, click = log[name], log["is_click"] == 1
    given = flag[click].mean() if click.any() else 0.0
    return {"label": name, "rate": flag.mean(), "given_click": given, "rows": int(flag.sum())}


def _tabs(log: dict[str, np.ndarray]) -> pd.DataFrame:
    frame = pd.DataFrame({"tab": log["tab"], "click": log["is_click"], "zero_play": log["play_time_ms"] == 0})
    by_tab = frame.groupby("tab").agg(
        share=("click", "size"), click_rate=("click", "mean"), zero_play=("zero_play", "mean")
    )
    by_tab["share"] /= len(frame)
    return by_tab.sort_values("share", ascending=False).reset_index()


def _words(manifest: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [
        (column, word, rows)
        for of_table in manifest["words"].values()
        for column, words in of_table.items()
        for word, rows in list(words.items())[:10]
    ]
