"""Synthetic twins of KuaiRand-Pure and KuaiRand-27K in their files, with clicks and interests from a planted signal.

What is copied from the real data: files, columns and words; how many videos are shown how often (counts are drawn from
their law, `frequency`), in bursts; the lognormal lengths of users; sessions; the shares of the tabs, how often each is
clicked and not played; durations, play times, and labels by the real rule over both, with noise; the rates of actions;
days and hours; `hourmin` an hour ahead in 17.5 % of the rows, rows that share a millisecond, exact copies, durations of
0, -124 and missing values.

What is planted: a click probability (`kuairand_planted`), and an order in what a user watches. Videos form clusters, a
user prefers six of them, and stays in the last row's cluster more often than not: a model of the last few rows knows
which cluster comes next and beats the most popular videos.

The log is made user by user from random numbers keyed by (seed, log, user): the files do not depend on blocks, and
memory grows by no more than 4 bytes a row, those of the exposures' plan (`kuairand_synth_plan`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nestlab.data import kuairand_synth_kernels as kernels
from nestlab.data.kuairand_files import RANDOM, STANDARD, USERS, VIDEOS
from nestlab.data.kuairand_format import COLUMNS, HEADER, HOUR_MS
from nestlab.data.kuairand_planted import TAB_SHARES, TAB_ZERO, TABS, ClickModel
from nestlab.data.kuairand_synth_plan import Plan, make_plan
from nestlab.data.kuairand_synth_shape import PURE_SHAPE, Shape
from nestlab.data.kuairand_synth_tables import make_users, video_facts, video_lines
from nestlab.data.kuairand_tables import VIDEO_TABLE
from nestlab.data.planted import expected_auc
from nestlab.data.prepare import Progress
from nestlab.data.twins import TwinFiles

VERSION = 3  # raise it whenever the same rows and seed would give other files
BLOCK = 1 << 16
SAMPLE = 20_000
# fmt: off
HOURS = (3.65, 2.3, 1.5, .9, .75, .95, 1.8, 2.8, 3.45, 3.9, 4.3, 4.9, 5.7, 5.3, 4.7, 4.7, 4.9, 5.3, 5.5, 5.8,
         6.3, 6.9, 7.4, 6.0)
# fmt: on


@dataclass(frozen=True)
class Log:
    """One of the two logs: its stream of random numbers, 1 where videos were shown at random, and its rows."""

    at_random: int
    rows: int


def file_names(shape: Shape) -> tuple[str, ...]:
    return tuple(name for role in (STANDARD, RANDOM, USERS, VIDEOS) for name in shape.variant.files[role])


FILES = file_names(PURE_SHAPE)


class Twin:
    """The generator for a number of rows of the standard log and a seed; the random log is as much shorter as the real.

    Attributes:
        logs: the standard one and the random one.
        plan: which video is shown when.
    """

    def __init__(self, rows: int, seed: int = 0, shape: Shape = PURE_SHAPE) -> None:
        self.rows, self.seed, self.shape = rows, seed, shape
        self.logs = (Log(0, rows), Log(1, shape.random_rows(rows)))
        self.n_users = shape.users(rows)
        self.law = shape.law_at(rows)
        self.users = make_users(np.random.default_rng([seed, 3]), self.n_users)
        self._clusters = _cluster_shares(seed, self.n_users, round(rows / self.law.mean))
        sample = np.sort(np.random.default_rng([seed, 6]).integers(0, rows, SAMPLE))
        self.plan, user, cluster = self._planned(sample)
        self.facts = video_facts(np.random.default_rng([seed, 4]), self.plan.cluster_of, self.plan.shown)
        self.clicks = ClickModel(seed, self.users, self.facts)
        self.pool = min(shape.pool, self.plan.videos)
        handicap = self._calibrate(user, cluster)
        self._worlds = (self._made_world(), kernels.at_random(self._made_world(), handicap))

    @property
    def n_videos(self) -> int:
        return self.plan.videos

    def blocks(self, log: Log) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yields (the 19 columns, sorted by user and time; the planted click probabilities [n] float64)."""
        for rows, p_n in self.pieces(log):
            yield {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(COLUMNS)}, p_n

    def pieces(self, log: Log) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """As `blocks`, the columns as [n, 19] int64."""
        walk, taken = self._walk(log), self.plan.starts.copy()
        for walked in self._walked(log):
            n = len(walked.time)
            video, rows, p_n = np.empty(n, np.int64), np.empty((n, len(COLUMNS)), np.int64), np.empty(n)
            if log.at_random:
                kernels.pick_at_random(walk, walked, self.pool, video)
            else:
                kernels.take_exposures(walked, self.plan.exposures, taken, video)
            kernels.fill_rows(self._worlds[log.at_random], walk, walked, video, rows, p_n)
            yield rows, p_n

    def _walked(self, log: Log) -> Iterator[kernels.Walked]:
        ends = np.rint(np.cumsum(self._weights()) * log.rows).astype(np.int64)
        lengths = np.diff(ends, prepend=0)
        # A block ends with the user in whose run its last row falls; a user is never cut.
        borders = np.unique([*np.searchsorted(ends, np.arange(BLOCK, log.rows, BLOCK)), self.n_users])
        walk = self._walk(log)
        for first, stop in zip([0, *borders[:-1]], borders, strict=True):
            n = int(lengths[first:stop].sum())
            if n:
                walked = kernels.Walked(*(np.empty(n, t) for t in (np.int64, np.int64, np.int32, np.bool_)))
                kernels.walk_users(walk, int(first), lengths[first:stop], walked)
                yield walked

    def _walk(self, log: Log) -> kernels.Walk:
        shape, days = self.shape, np.array(self.shape.days, float)
        if log.at_random:
            days[:14] = 0.0
        hours = np.outer(days, HOURS).ravel()
        clusters = np.cumsum(self._clusters)
        gap = (float(shape.gap_s * 1000), float(shape.gap_sigma))
        profile = (_whole(np.cumsum(hours)), _whole(clusters))
        return kernels.Walk(self.seed, log.at_random, *profile, shape.tastes, shape.session, *gap, shape.stay)

    def _weights(self) -> np.ndarray:
        """[users] the share of each in the log."""
        weights = np.random.default_rng([self.seed, 8]).lognormal(0.0, self.shape.length_sigma, self.n_users)
        return weights / weights.sum()

    def _planned(self, sample: np.ndarray) -> tuple[Plan, np.ndarray, np.ndarray]:
        """The plan; users and clusters of the rows numbered `sample`, ascending."""
        demand = np.zeros((len(self._clusters), kernels.BINS), np.int64)
        done, users, clusters = 0, [], []
        for walked in self._walked(self.logs[0]):
            kernels.count_demand(walked, demand)
            here = sample[slice(*np.searchsorted(sample, (done, done + len(walked.time))))] - done
            users.append(walked.user[here])
            clusters.append(walked.cluster[here])
            done += len(walked.time)
        plan = make_plan(self.seed, demand, self.law, self.shape.burst)
        return plan, np.concatenate(users), np.concatenate(clusters)

    def _calibrate(self, user: np.ndarray, cluster: np.ndarray) -> float:
        """Of the model on rows of these users and clusters; returns the handicap of the random log."""
        rng = np.random.default_rng([self.seed, 7])
        video = self.plan.of_clusters(rng, cluster)
        tab = np.array(list(TAB_SHARES))[np.searchsorted(_tab_cdf(), rng.random(len(user)), side="right")]
        own = kernels.own_clusters(self._walk(self.logs[0]), user)
        self.clicks.calibrate(user, video, tab, (own == cluster[:, None]).any(axis=1), self.shape.click_rate)
        video = rng.integers(0, self.pool, len(user))
        liked = (own == self.plan.cluster_of[video][:, None]).any(axis=1)
        return self.clicks.handicap(user, video, tab, liked)

    def _made_world(self) -> kernels.World:
        start = np.datetime64(kernels.START_MS + 8 * HOUR_MS, "ms").astype("datetime64[D]")
        days = (str(start + i).replace("-", "") for i in range(kernels.DAYS + 1))
        zero = np.full(TABS, 0.5)
        zero[list(TAB_ZERO)] = list(TAB_ZERO.values())
        return kernels.World(
            *self.clicks.terms,
            duration=self.facts.duration,
            cluster_of=self.plan.cluster_of,
            dates=np.array([int(day) for day in days]),
            tabs=np.array(list(TAB_SHARES)),
            tab_cdf=_tab_cdf(),
            tab_logit=self.clicks.tab_logits,
            tab_zero=zero,
            given=kernels.GIVEN,
            long_given_valid=kernels.LONG_GIVEN_VALID,
            handicap=0.0,
        )


def _cluster_shares(seed: int, users: int, videos: int) -> np.ndarray:
    """[clusters] float64: how much of the log each cluster has.

    About 150 videos each, but so few clusters that about 50 users prefer each: few see a video twice.
    """
    clusters = int(np.clip(min(videos // 150, users // 8), 4, 4096))
    shares = np.random.default_rng([seed, 5]).permutation(1.0 / np.sqrt(1.0 + np.arange(clusters)))
    return shares / shares.sum()


def _tab_cdf() -> np.ndarray:
    return _whole(np.cumsum(list(TAB_SHARES.values())))


def _whole(cumulative: np.ndarray) -> np.ndarray:
    return cumulative / cumulative[-1]


def twin_files(rows: int, seed: int, progress: Progress = lambda message: None, shape: Shape = PURE_SHAPE) -> TwinFiles:
    """The raw files of the twin, to be cached or published.

    Raises:
        UserError: bad numbers.
    """
    wanted = {"version": VERSION, "rows": rows, "seed": seed}
    names = file_names(shape)

    def write(place) -> dict[str, object]:
        return _write({name: place(name) for name in names}, Twin(rows, seed, shape), progress)

    return TwinFiles(shape.name, names, wanted, write)


@dataclass
class _Tally:
    """What is counted while a log is written."""

    rows: int = 0
    clicks: int = 0

    def __post_init__(self) -> None:
        self.probabilities = np.zeros(1 << 14)

    def add(self, clicked: np.ndarray, p_n: np.ndarray) -> None:
        self.probabilities += np.bincount((p_n * (1 << 14)).astype(np.int64), minlength=1 << 14)
        self.rows, self.clicks = self.rows + len(p_n), self.clicks + int(clicked.sum())

    def facts(self) -> dict[str, object]:
        centres = (np.arange(1 << 14) + 0.5) / (1 << 14)
        return {
            "click_rate": self.clicks / self.rows,
            "bayes_auc": expected_auc(centres, self.probabilities),
            "bayes_auc_is": "expected AUC of the planted click probability of the standard log: no model can do better",
        }


def _write(paths: dict[str, Path], twin: Twin, progress: Progress) -> dict[str, object]:
    *logs, users, videos = paths.values()
    twin.users.to_csv(users, index=False)
    _write_videos(videos, twin)
    tally = _Tally()
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in logs]
        for file in files:
            file.write(HEADER.encode() + b"\n")
        for log in twin.logs:
            for rows, p_n in twin.pieces(log):
                if log.at_random:
                    _append(files[-1], rows, np.ones(len(rows), bool))
                    continue
                _append_standard(files[:-1], rows, twin.n_users)
                tally.add(rows[:, COLUMNS.index("is_click")], p_n)
                progress(f"{twin.shape.name}: {tally.rows:,} of {twin.rows:,} rows")
    return {
        **tally.facts(),
        "users": twin.n_users,
        "videos": twin.n_videos,
        "clusters": len(twin.plan.starts),
        "signal": twin.clicks.facts(),
    }


def _append_standard(files: list[BinaryIO], rows: np.ndarray, users: int) -> None:
    """27K has two parts for each of the two spans; here a part is half of the users."""
    late = rows[:, COLUMNS.index("time_ms")] >= kernels.BORDER_MS
    parts = len(files) // 2
    part = rows[:, COLUMNS.index("user_id")] * parts // users
    for number, file in enumerate(files):
        _append(file, rows, (late == (number >= parts)) & (part == number % parts))


def _append(file: BinaryIO, rows: np.ndarray, wanted: np.ndarray) -> None:
    text = np.empty(kernels.LINE_BYTES * len(rows), np.uint8)
    file.write(memoryview(text)[: kernels.write_lines(rows, wanted, text)])


def _write_videos(path: Path, twin: Twin) -> None:
    with open(path, "wb") as file:
        file.write(VIDEO_TABLE.header.encode() + b"\n")
        for text in video_lines(twin.seed, twin.facts):
            file.write(text)
