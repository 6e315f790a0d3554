"""The feature tables of kuairand-synth: any number of users and videos, in the columns and words of the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

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
TAG_OF_CLUSTER = 0.8
_BLOCK = 1 << 16  # videos written at a time
# Parts of the rows, and their durations in ms.
_DURATION = (
    (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1),
    (5_000, 7_100, 10_400, 13_200, 27_500, 72_200, 158_800, 250_000, 313_400, 481_900, 1_177_000),
)
ABSENT = {"onehot_feat4": 0.032, "video_duration": 0.0315, "music_type": 0.027, "tag": 0.0127}
ABSENT_SELDOM = -0.16  # the power of how often a video is shown that its missing duration goes by: it is a seldom one
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


@dataclass(frozen=True)
class VideoFacts:
    """What of n videos the log depends on: author [n] int64, tag [n] int64 (the first; -1: none), duration [n] int32.

    A duration is in ms; 0 where it is missing.
    """

    author: np.ndarray
    tag: np.ndarray
    duration: np.ndarray


def video_facts(rng: np.random.Generator, cluster_of: np.ndarray, shown: np.ndarray) -> VideoFacts:
    """Of the videos 0 … n−1; the tag follows the cluster in most of them. `shown` [n]: how often each is."""
    n = len(cluster_of)
    author = 1_000 + (n * 0.85 * rng.random(n) ** 1.2).astype(np.int64) * 37
    tag = np.where(rng.random(n) < TAG_OF_CLUSTER, cluster_of % TAGS, (TAGS * rng.random(n) ** 2).astype(np.int64)) + 1
    tag[rng.random(n) < ABSENT["tag"]] = -1
    ms = np.exp(np.interp(rng.random(n), *(_DURATION[0], np.log(_DURATION[1])))).astype(np.int32)
    seldom = (1.0 + shown) ** ABSENT_SELDOM
    ms[rng.random(n) < ABSENT["video_duration"] * seldom / seldom.mean()] = 0
    return VideoFacts(author, tag, ms)


def video_lines(seed: int, facts: VideoFacts) -> Iterator[memoryview]:
    """The lines of the table of videos in blocks, as the real file has them: floats end in ".0", tags are quoted."""
    for number, start in enumerate(range(0, len(facts.author), _BLOCK)):
        piece = slice(start, start + _BLOCK)
        rng = np.random.default_rng([seed, 11, number])
        yield _videos(rng, start, VideoFacts(facts.author[piece], facts.tag[piece], facts.duration[piece]))


def _videos(rng: np.random.Generator, first: int, facts: VideoFacts) -> memoryview:
    # Whole blocks are drawn, so that a video does not depend on how many follow it.
    n, size = len(facts.author), rng.choice(3, _BLOCK, p=(0.6, 0.3, 0.1))
    day, music = rng.choice(3, _BLOCK, p=(0.37, 0.45, 0.18)), rng.integers(0, 1 << 24, _BLOCK)
    second, two = rng.integers(1, TAGS + 1, _BLOCK), rng.random(_BLOCK) < 0.24
    music_type = np.where(rng.random(_BLOCK) < ABSENT["music_type"], 2, rng.random(_BLOCK) > 0.9)
    columns = {
        "video_id": pa.array(np.arange(first, first + n)).cast(pa.string()),
        "author_id": pa.array(facts.author).cast(pa.string()),
        "video_type": _words(("NORMAL", "AD"), (rng.random(_BLOCK) < 0.01)[:n]),
        "upload_dt": _words(DAYS, day[:n]),
        "upload_type": _words(tuple(UPLOAD), _drawn_codes(rng, _BLOCK, UPLOAD)[:n]),
        "visible_status": _words(("0.0",), np.zeros(n, np.int64)),
        "video_duration": _or_nothing(
            pc.binary_join_element_wise(_text(facts.duration), ".0", ""), facts.duration == 0
        ),
        "server_width": _words(("720.0", "1080.0", "1280.0"), size[:n]),
        "server_height": _words(("1280.0", "1920.0", "720.0"), size[:n]),
        "music_id": _text(6_000_000_000 + music[:n]),
        "music_type": _words(("9.0", "4.0", ""), music_type[:n]),
        "tag": _tags(facts.tag, second[:n], two[:n]),
    }
    # pyarrow's writer quotes every word or refuses commas; the real file quotes only what has one.
    lines = pc.binary_join_element_wise(*(columns[name] for name in VIDEO_TABLE.kinds), ",")
    return memoryview(pc.binary_join_element_wise(lines, "\n", "").buffers()[2])


def _text(values: np.ndarray) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _words(words: tuple[str, ...], codes: np.ndarray) -> pa.Array:
    return pa.array(words).take(pa.array(codes.astype(np.int64)))


def _or_nothing(text: pa.Array, nothing: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(nothing), "", text)


def _tags(first: np.ndarray, second: np.ndarray, two: np.ndarray) -> pa.Array:
    pair = pc.binary_join_element_wise('"', _text(first), ",", _text(second), '"', "")
    return _or_nothing(pc.if_else(pa.array(two & (first != second)), pair, _text(first)), first < 0)


def _counts(rng: np.random.Generator, count: int, median: float, sigma: float) -> np.ndarray:
    return np.floor(np.clip(rng.lognormal(np.log(median), sigma, count), 0, 5_000_000)).astype(np.int64)


def _drawn(rng: np.random.Generator, count: int, shares: dict[str, float]) -> np.ndarray:
    return np.array(list(shares), object)[_drawn_codes(rng, count, shares)]


def _drawn_codes(rng: np.random.Generator, count: int, shares: dict[str, float]) -> np.ndarray:
    p = np.array(list(shares.values()))
    return rng.choice(len(p), count, p=p / p.sum())


def _ranges(values: np.ndarray, ranges: tuple[tuple[int, ...], tuple[str, ...]]) -> np.ndarray:
    borders, names = ranges
    return np.array(names, object)[np.searchsorted(borders, values)]


def _blanked(frame: pd.DataFrame, absent: dict[str, np.ndarray]) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].mask(where) for name, where in absent.items()})
