"""The rows of kuairand-synth's log: times, play times and actions, and the log's own oddities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.data.kuairand_format import BEIJING_HOURS, COLUMNS, HOUR_MS

DAY_MS = 24 * HOUR_MS
_DAYS_TO_2022_04_09 = 19_091
START_MS = _DAYS_TO_2022_04_09 * DAY_MS - BEIJING_HOURS * HOUR_MS  # midnight in Beijing
BORDER_MS = START_MS + 13 * DAY_MS  # 04-22, where the second file starts
# fmt: off
DAY_WEIGHTS = (53, 228, 279, 166, 95, 71, 59, 61, 44, 25, *(20,) * 20)
HOUR_WEIGHTS = (4.2, 2.5, 1.5, .9, .7, .9, 1.8, 3.0, 3.6, 3.7, 3.9, 4.5, 5.6, 5.0, 4.2, 4.0, 4.1, 4.6, 5.4, 6.0,
                6.5, 7.2, 7.6, 6.1)
# fmt: on
AHEAD = 0.175  # rows whose hourmin is an hour ahead
COPIES, TIES = 0.021, 0.012  # rows that copy the one before, or share its millisecond
LONG_GIVEN_CLICK = 0.70
# Actions given a click; without one a hundredth of it.
GIVEN_CLICK = {"is_like": 0.038, "is_follow": 0.0025, "is_comment": 0.0055, "is_forward": 0.002}
ENTER_GIVEN_CLICK, HATE = 0.045, 0.0006
STAY_CAP_MS = 300_000


@dataclass(frozen=True)
class Shown:
    """n exposures, [n] int64 each, users ascending and `time_ms` ascending within a user."""

    user: np.ndarray
    video: np.ndarray
    tab: np.ndarray
    duration_ms: np.ndarray
    time_ms: np.ndarray
    at_random: bool


def draw_times(rng: np.random.Generator, user_n: np.ndarray, second_half: bool) -> np.ndarray:
    """[n] int64 ms, ascending within each user; of the days from 04-22 on where `second_half`."""
    days = np.array(DAY_WEIGHTS, float)
    if second_half:
        days[:13] = 0.0
    hours = np.array(HOUR_WEIGHTS)
    day = rng.choice(len(days), len(user_n), p=days / days.sum())
    hour = rng.choice(24, len(user_n), p=hours / hours.sum())
    time = START_MS + day * DAY_MS + hour * HOUR_MS + rng.integers(0, HOUR_MS, len(user_n))
    return time[np.lexsort((time, user_n))]


def log_columns(rng: np.random.Generator, shown: Shown, p_n: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The 19 columns [n] int64 of the log by name, and the click probabilities of their rows [n]."""
    n = len(p_n)
    follows = np.zeros(n, bool)
    follows[1:] = shown.user[1:] == shown.user[:-1]
    time = _tied(rng, shown.time_ms, follows)
    click = (rng.random(n) < p_n).astype(np.int64)
    long_view = click * (rng.random(n) < LONG_GIVEN_CLICK)
    columns = {
        "user_id": shown.user,
        "video_id": shown.video,
        **_dates(rng, time),
        "time_ms": time,
        "is_click": click,
        "long_view": long_view,
        "play_time_ms": _play_time(rng, shown, click, long_view),
        "duration_ms": shown.duration_ms,
        "comment_stay_time": np.where(rng.random(n) < 0.05, _stay(rng, n), 0),
        "is_rand": np.full(n, int(shown.at_random)),
        "tab": shown.tab,
        **_actions(rng, click),
    }
    copied = follows & (rng.random(n) < COPIES)
    copied[1:] &= ~copied[:-1]
    source = np.arange(n) - copied
    return {name: columns[name][source] for name in COLUMNS}, p_n[source]


def _tied(rng: np.random.Generator, time: np.ndarray, follows: np.ndarray) -> np.ndarray:
    tied = follows & (rng.random(len(time)) < TIES)
    tied[1:] &= ~tied[:-1]  # so that a tie's first row keeps its own time
    return time[np.arange(len(time)) - tied]


def _dates(rng: np.random.Generator, time: np.ndarray) -> dict[str, np.ndarray]:
    """date (YYYYMMDD) and hourmin (HH00), an hour ahead in some rows, into the next day where it must be."""
    local = time + BEIJING_HOURS * HOUR_MS + HOUR_MS * (rng.random(len(time)) < AHEAD)
    day = local.astype("datetime64[ms]").astype("datetime64[D]")
    month = day.astype("datetime64[M]")
    year = month.astype("datetime64[Y]").astype(np.int64) + 1970
    number = year * 10_000 + (month.astype(np.int64) % 12 + 1) * 100 + (day - month).astype(np.int64) + 1
    return {"date": number, "hourmin": local // HOUR_MS % 24 * 100}


def _play_time(rng: np.random.Generator, shown: Shown, click: np.ndarray, long_view: np.ndarray) -> np.ndarray:
    """A long view plays most of the video or beyond its end, a click some seconds; tab 0 shows without playing."""
    n = len(click)
    long = np.maximum(shown.duration_ms, 5_000) * rng.uniform(0.45, 1.35, n)
    some = 7_000 * rng.lognormal(0.0, 0.6, n)
    left = 2_000 * rng.lognormal(0.0, 0.8, n)
    unplayed = rng.random(n) < np.where(shown.tab == 0, 0.995, 0.012)
    play = np.where(long_view == 1, long, np.where(click == 1, some, np.where(unplayed, 0.0, left)))
    return np.rint(play).astype(np.int64)


def _actions(rng: np.random.Generator, click: np.ndarray) -> dict[str, np.ndarray]:
    n = len(click)
    actions = {}
    for name, rate in GIVEN_CLICK.items():
        actions[name] = (rng.random(n) < np.where(click == 1, rate, rate / 100)).astype(np.int64)
    enter = (rng.random(n) < np.where(click == 1, ENTER_GIVEN_CLICK, 0.002)).astype(np.int64)
    actions |= {"is_hate": (rng.random(n) < HATE).astype(np.int64), "is_profile_enter": enter}
    return {**actions, "profile_stay_time": np.where((enter == 1) & (rng.random(n) < 0.004), _stay(rng, n), 0)}


def _stay(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.minimum(rng.exponential(9_000, n), STAY_CAP_MS).astype(np.int64)
