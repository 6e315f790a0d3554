"""The feature tables of kuairand-synth: any number of users and videos, in the columns and words of the real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.data.kuairand_tables import ONEHOTS, USER_TABLE, VIDEO_TABLE

MISSING = -124
# fmt: off
ACTIVE = {"full_active": .658, "high_active": .226, "middle_active": .078, "2_14_day_new": .023, "low_active": .011,
          "single_low_active": .0025, "30day_retention": .0006, "day_new": .0004, "UNKNOWN": .0005}
# Upper borders (inclusive) and names of the ranges.
FOLLOW = ((0, 10, 50, 100, 150, 250, 500),
          ("0", "(0,10]", "(10,50]", "(50,100]", "(100,150]", "(150,250]", "(250,500]", "500+"))
FANS = ((0, 9, 99, 999, 4999, 9999, 99999, 999999),
        ("0", "[1,10)", "[10,100)", "[100,1k)", "[1k,5k)", "[5k,1w)", "[1w,10w)", "[10w,100w)", "[100w,1000w)"))
FRIEND = ((0, 4, 29, 59, 119, 249), ("0", "[1,5)", "[5,30)", "[30,60)", "[60,120)", "[120,250)", "250+"))
REGISTER = ((7, 14, 30, 60, 90, 180, 365, 730),
            ("-7", "8-14", "15-30", "31-60", "61-90", "91-180", "181-365", "366-730", "730+"))
ONEHOT_SIZES = (2, 7, 50, 1471, 15, 34, 3, 118, 454, 7, 5, 5, 2, 2, 2, 2, 2, 2)
UPLOAD = {"LongImport": .386, "Web": .319, "ShortImport": .121, "Kmovie": .116, "LongPicture": .019, "UNKNOWN": .0105,
          "PictureSet": .0095, "LongCamera": .0085, "ShortCamera": .0057, "ShareFromOtherApp": .0048}
# fmt: on
DAYS = ("2022-04-09", "2022-04-10", "2022-04-11")
TAGS = 68
ABSENT = {"onehot_feat4": 0.032, "video_duration": 0.0315, "music_type": 0.027, "tag": 0.0127}
ABSENT_TOGETHER = 0.026  # onehot_feat12 … 17


def make_users(rng: np.random.Generator, count: int) -> pd.DataFrame:
    """The table of users 0 … count−1; missing numbers are NaN or −124, as in the real one."""
    follow, fans, friend = (_counts(rng, count, *law) for law in ((155, 1.6), (48, 2.2), (16, 2.0)))
    days = np.clip(np.rint(rng.normal(1200, 680, count)), 8, 3700).astype(np.int64)
    columns: dict[str, object] = {
        "user_id": np.arange(count),
        "user_active_degree": _drawn(rng, count, ACTIVE),
        "is_lowactive_period": np.zeros(count, np.int64),
        "is_live_streamer": np.where(rng.random(count) < 0.774, MISSING, 1),
        "is_video_author": (rng.random(count) < 0.816).astype(np.int64),
    }
    numbers = {"follow_user_num": (follow, FOLLOW), "fans_user_num": (fans, FANS)}
    numbers |= {"friend_user_num": (friend, FRIEND), "register_days": (days, REGISTER)}
    for name, (values, ranges) in numbers.items():
        columns |= {name: values, f"{name}_range": _ranges(values, ranges)}
    for name, size in zip(ONEHOTS, ONEHOT_SIZES, strict=True):
        columns[name] = (size * rng.random(count) ** 1.5).astype(np.int64)
    together = rng.random(count) < ABSENT_TOGETHER
    absent = dict.fromkeys(ONEHOTS[12:], together) | {"onehot_feat4": rng.random(count) < ABSENT["onehot_feat4"]}
    return _blanked(pd.DataFrame(columns), absent)[list(USER_TABLE.kinds)]


def make_videos(rng: np.random.Generator, count: int) -> pd.DataFrame:
    """The table of videos 0 … count−1."""
    size = rng.choice(3, count, p=(0.6, 0.3, 0.1))
    columns = {
        "video_id": np.arange(count),
        "author_id": 1_000 + (count * 0.85 * rng.random(count) ** 1.2).astype(np.int64) * 37,
        "video_type": _drawn(rng, count, {"NORMAL": 0.99, "AD": 0.01}),
        "upload_dt": np.array(DAYS)[rng.choice(3, count, p=(0.3, 0.45, 0.25))],
        "upload_type": _drawn(rng, count, UPLOAD),
        "visible_status": np.zeros(count),
        "video_duration": np.rint(1000 * np.clip(rng.lognormal(np.log(72), 0.9, count), 5, 1200)),
        "server_width": np.array([720.0, 1080.0, 1280.0])[size],
        "server_height": np.array([1280.0, 1920.0, 720.0])[size],
        "music_id": 6_000_000_000 + rng.integers(0, max(2, count // 2), count),
        "music_type": np.where(rng.random(count) < 0.9, 9.0, 4.0),
        "tag": _tags(rng, count),
    }
    absent = {name: rng.random(count) < ABSENT[name] for name in ("video_duration", "music_type", "tag")}
    return _blanked(pd.DataFrame(columns), absent)[list(VIDEO_TABLE.kinds)]


def _counts(rng: np.random.Generator, count: int, median: float, sigma: float) -> np.ndarray:
    return np.floor(np.clip(rng.lognormal(np.log(median), sigma, count), 0, 5_000_000)).astype(np.int64)


def _drawn(rng: np.random.Generator, count: int, shares: dict[str, float]) -> np.ndarray:
    p = np.array(list(shares.values()))
    return np.array(list(shares), object)[rng.choice(len(p), count, p=p / p.sum())]


def _ranges(values: np.ndarray, ranges: tuple[tuple[int, ...], tuple[str, ...]]) -> np.ndarray:
    borders, names = ranges
    return np.array(names, object)[np.searchsorted(borders, values)]


def _tags(rng: np.random.Generator, count: int) -> np.ndarray:
    first, second = ((TAGS * rng.random(count) ** 2).astype(np.int64) + 1 for _ in range(2))
    two = (rng.random(count) < 0.24) & (first != second)
    return np.array([f"{a},{b}" if both else str(a) for a, b, both in zip(first, second, two, strict=True)], object)


def _blanked(frame: pd.DataFrame, absent: dict[str, np.ndarray]) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].mask(where) for name, where in absent.items()})
