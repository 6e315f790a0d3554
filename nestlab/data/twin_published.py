"""Published figures of KuaiRand beside a twin's: of what the real rows here do not hold.

The figures are counts over all rows, by the data's authors and by those who published analyses of them. The random log
of 27K is that of Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nestlab.data.frequency import top_shares
from nestlab.data.kuairand_files import PURE, RANDOM, STANDARD
from nestlab.data.kuairand_format import COLUMNS, beijing_hour
from nestlab.data.kuairand_synth import Log, Twin
from nestlab.data.twin_chance import mean_error, rate_error, top_share_errors
from nestlab.data.twin_kuairand import by_video, copies
from nestlab.data.twin_statistics import PUBLISHED, UNEXPLAINED, Statistic, mean, rate, share

Pair = tuple[Statistic, Statistic]  # what is published, the twin's

_RANDOM_ROWS = PURE.rows[RANDOM]
# The rate, and what modelling may miss as a part of it.
_RANDOM = {"is_click": (0.1762, 0.03), "long_view": (0.0850, 0.04), "is_like": (0.0048, 0.10)}
_RANDOM |= {"is_hate": (0.00114, 0.15)}
_RANDOM_ZERO, _RANDOM_COPIES = 36_920 / _RANDOM_ROWS, 10 / _RANDOM_ROWS
_RANDOM_TOP = 0.0127
_PURE = {"is_click": (0.4640, 0.03), "long_view": (0.3356, 0.04), "is_like": (0.01864, 0.10)}
_PURE_ZERO = 28_860 / 1_414_622
_K27 = {"is_click": (0.3787, 0.03)}
_K27_AHEAD = 0.178
_K27_VIDEOS = 32_038_725
_K27_SEEN = {1: 1.7e7, 2: 4.3e6, 3: 2.1e6, 10: 2.9e5}  # videos by how often they were shown
_K27_TOP = 0.4411
_FORTNIGHT = "the twin's rates are those of the last fortnight, of which there are real rows"
_MISSING = "the twin's share is drawn video by video, and a few that are shown often decide"
_CUTOFF = "a log of fewer rows has the cut-off of its law lower, and with it less of a head"
_FIGURE = "read off a published figure; the law has to meet the head and the mean as well"
_FEWER = "fewer rows a video than published: chance makes a head"
_RARE = "as many users as the rows are for; published of all 27,285"
_LEAST = "few rows are shared out over more users than their length would have"
_NOT_27K = {
    "users: longest (rows)": (228_000.0, np.max),
    "users: shortest (rows)": (100.0, np.min),
}
_ACTED = "published of rows with a like or a hate, which are no sample of the log"


class _Seen:
    """What a log shows, gathered piece by piece: its columns, and what is counted over all rows."""

    def __init__(self, twin: Twin, log: Log, wanted: tuple[str, ...]) -> None:
        found: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
        self.copies = []
        for rows, _ in twin.pieces(log):
            for name, columns in found.items():
                columns.append(rows[:, COLUMNS.index(name)].copy())
            if log.at_random:
                self.copies.append(copies(list(rows.T)))
        self.columns = {name: np.concatenate(columns) for name, columns in found.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]


def published(twin: Twin) -> list[Pair]:
    """All that is published of the data that `twin` stands in for and that its real rows, if any, do not give."""
    return [*_standard(twin), *_random(twin)]


def _standard(twin: Twin) -> Iterator[Pair]:
    pure = twin.shape.variant is PURE
    rates = _PURE if pure else _K27
    seen = _Seen(twin, twin.logs[0], ("user_id", "video_id", "time_ms", "hourmin", "duration_ms", *rates))
    rows = twin.shape.variant.rows[STANDARD]
    for name, (value, part) in rates.items():
        yield _rate(f"standard log: {name}", value, rows, part, _made(value, seen[name] == 1, _FORTNIGHT))
    zero = by_video("", seen["duration_ms"] == 0, seen["video_id"])
    if pure:
        yield _rate("standard log: duration 0", _PURE_ZERO, rows, 0.10, replace(zero, why=_MISSING))
    else:
        yield _not("standard log: duration 0", 0.185, zero.value, _ACTED)
    lengths = np.bincount(seen["user_id"])
    yield from _lengths(twin, lengths[lengths > 0])
    if not pure:
        yield from _k27(seen, lengths[lengths > 0])


def _lengths(twin: Twin, lengths: np.ndarray) -> Iterator[Pair]:
    """Median and mean; the median's error is √(π/2) of the mean's where values are normal, as the logs of these are."""
    shape, normal = twin.shape, np.sqrt(np.pi / 2)
    users = round(shape.variant.rows[STANDARD] / shape.mean_length)
    median, of_logs = float(np.median(lengths)), normal * mean_error(np.log(lengths))
    spread = normal * shape.length_sigma * shape.median_length / np.sqrt(users)
    pairs = {
        "users: median length (rows)": (shape.median_length, spread, Statistic("", median, 0.0, median * of_logs)),
        "users: mean length (rows)": (shape.mean_length, 0.0, mean("", lengths, 0.0)),
    }
    whole = twin.n_users <= 1.05 * twin.rows / shape.mean_length
    for name, (value, error, made) in pairs.items():
        why = UNEXPLAINED if whole else _LEAST
        yield Statistic(name, value, 0.05 * value, error, why, PUBLISHED, compared=whole), made


def _k27(seen: _Seen, lengths: np.ndarray) -> Iterator[Pair]:
    for name, (value, of) in _NOT_27K.items():
        yield _not(name, value, float(of(lengths)), _RARE)
    hour = beijing_hour(seen["time_ms"])
    rows = 1 << 16  # of a sample of 27K, whose size is not published: taken to be small
    told = (hour + 1) % 24 == seen["hourmin"] // 100
    yield _rate("hourmin an hour ahead", _K27_AHEAD, rows, 0.03, _made(_K27_AHEAD, told))
    shown = np.bincount(seen["video_id"])
    shown = shown[shown > 0]
    for times, videos in _K27_SEEN.items():
        line = _made(videos / _K27_VIDEOS, shown == times, _FIGURE)
        yield _rate(f"videos: shown {times} times", videos / _K27_VIDEOS, _K27_VIDEOS, 0.10, line)
    (top,), (error,) = top_shares(shown, (0.01,)), top_share_errors(shown, (0.01,))
    yield (
        Statistic("videos: top 1 %", _K27_TOP, 0.07 * _K27_TOP, why=_CUTOFF, source=PUBLISHED),
        Statistic("", top, 0.0, float(error)),
    )


def _random(twin: Twin) -> Iterator[Pair]:
    seen = _Seen(twin, twin.logs[1], ("video_id", "duration_ms", *_RANDOM))
    for name, (value, part) in _RANDOM.items():
        yield _rate(f"random log: {name}", value, _RANDOM_ROWS, part, _made(value, seen[name] == 1))
    zero = by_video("", seen["duration_ms"] == 0, seen["video_id"])
    yield _rate("random log: duration 0", _RANDOM_ZERO, _RANDOM_ROWS, 0.05, zero)
    again = _made(_RANDOM_COPIES, np.concatenate(seen.copies))
    yield _rate("random log: exact copies", _RANDOM_COPIES, _RANDOM_ROWS, 0.10, again)
    (top,) = top_shares(np.unique(seen["video_id"], return_counts=True)[1], (0.01,))
    name = "random log: videos: top 1 %"
    if twin.logs[1].rows < _RANDOM_ROWS // 2:
        yield _not(name, _RANDOM_TOP, top, _FEWER)
    else:
        yield _rate(name, _RANDOM_TOP, _RANDOM_ROWS, 0.05, Statistic("", top, 0.0))


def _made(published: float, hits: np.ndarray, why: str = UNEXPLAINED) -> Statistic:
    """The twin's rate among `hits` [n] bool. Its error is at least that of n rows of the published rate: of few rows a
    rare thing is often in none, and a rate of 0 by itself would have no error."""
    made = rate("", hits, 0.0, why)
    return replace(made, error=max(made.error, rate_error(published, len(hits))))


def _rate(name: str, value: float, rows: int, part: float, twin: Statistic) -> Pair:
    """Of so many rows a published rate, of which `part` may be missed; the reason is the twin's."""
    return replace(share(name, value, part, rate_error(value, rows), twin.why), source=PUBLISHED), twin


def _not(name: str, value: float, twin: float, why: str) -> Pair:
    return Statistic(name, value, 0.0, why=why, source=PUBLISHED, compared=False), Statistic("", twin, 0.0)
