"""kuairand-synth: a synthetic twin of KuaiRand-Pure in its files, with clicks from a planted signal.

What is copied from the real data: files, columns and words, the shares of the tabs and how often each is clicked, the
level of durations and play times, users of very different length, videos of very different popularity, the days and
hours, `hourmin` an hour ahead in 17.5 % of the rows, rows that share a millisecond, exact copies, durations of 0, -124
and missing values. What is not yet: the exact laws of popularity and length, and any order in what a user watches.

The log is made user by user, in blocks of users from generators of their own keyed by (seed, log, block): the files
do not depend on how they are written, and memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from nestlab.data.kuairand_files import PURE, RANDOM, STANDARD, USERS, VIDEOS
from nestlab.data.kuairand_format import COLUMNS, HEADER
from nestlab.data.kuairand_planted import TAB_SHARES, ClickModel
from nestlab.data.kuairand_synth_rows import BORDER_MS, Shown, draw_times, log_columns
from nestlab.data.kuairand_synth_tables import make_users, make_videos
from nestlab.data.planted import expected_auc
from nestlab.data.prepare import Progress
from nestlab.data.skew import draw_ranks
from nestlab.data.twins import TwinFiles

VERSION = 1  # raise it whenever the same rows and seed would give other files
BLOCK = 1 << 16
PURE_ROWS, PURE_VIDEOS = PURE.rows[STANDARD], 7_583
MEAN_LENGTH, LENGTH_SIGMA = 53, 0.85
VIDEO_SKEW = 0.75
RANDOM_SHARE, RANDOM_HANDICAP = 0.1, 1.4
FILES = tuple(name for role in (STANDARD, RANDOM, USERS, VIDEOS) for name in PURE.files[role])


@dataclass(frozen=True)
class _Log:
    """One of the two logs: its stream of random numbers, its rows, and whether videos were shown at random."""

    stream: int
    rows: int
    at_random: bool


class Twin:
    """The generator for a number of rows of the standard log and a seed; the random log has a tenth more."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rows, self.seed = rows, seed
        self.logs = (_Log(0, rows, False), _Log(1, max(1, round(rows * RANDOM_SHARE)), True))
        self.n_users = max(1, round(rows / MEAN_LENGTH))
        self.n_videos = max(50, round(PURE_VIDEOS * (rows / PURE_ROWS) ** 0.5))
        self.users = make_users(np.random.default_rng([seed, 3]), self.n_users)
        self.videos = make_videos(np.random.default_rng([seed, 4]), self.n_videos)
        self._popular = np.random.default_rng([seed, 5]).permutation(self.n_videos)
        self.clicks = ClickModel(seed, self.users, self.videos)
        rng = np.random.default_rng([seed, 6])
        sample = self._shown(rng, rng.choice(self.n_users, 20_000, p=self._weights()), self.logs[0])
        self.clicks.calibrate(sample.user, sample.video, sample.tab)

    def blocks(self, log: _Log) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yields (the 19 columns, sorted by user and time; the planted click probabilities [n] float64)."""
        ends = np.rint(np.cumsum(self._weights()) * log.rows).astype(np.int64)
        lengths = np.diff(ends, prepend=0)
        # A block ends with the user in whose run its last row falls; a user is never cut.
        borders = np.unique([*np.searchsorted(ends, np.arange(BLOCK, log.rows, BLOCK)), self.n_users])
        for number, (first, stop) in enumerate(zip([0, *borders[:-1]], borders, strict=True)):
            rng = np.random.default_rng([self.seed, 7, log.stream, number])
            shown = self._shown(rng, np.repeat(np.arange(first, stop), lengths[first:stop]), log)
            p_n = self.clicks.probability(shown.user, shown.video, shown.tab, RANDOM_HANDICAP if log.at_random else 0.0)
            if len(p_n):
                yield log_columns(rng, shown, p_n)

    def _weights(self) -> np.ndarray:
        """[users] the share of each in the log."""
        weights = np.random.default_rng([self.seed, 8]).lognormal(0.0, LENGTH_SIGMA, self.n_users)
        return weights / weights.sum()

    def _shown(self, rng: np.random.Generator, user_n: np.ndarray, log: _Log) -> Shown:
        n = len(user_n)
        if log.at_random:
            video = rng.integers(0, self.n_videos, n)
        else:
            video = self._popular[draw_ranks(rng, n, self.n_videos, VIDEO_SKEW) - 1]
        shares = np.array(list(TAB_SHARES.values()))
        tab = np.array(list(TAB_SHARES))[rng.choice(len(shares), n, p=shares / shares.sum())]
        duration = self.videos["video_duration"].fillna(0).to_numpy().astype(np.int64)[video]
        return Shown(user_n, video, tab, duration, draw_times(rng, user_n, log.at_random), log.at_random)


def twin_files(rows: int, seed: int, progress: Progress = lambda message: None) -> TwinFiles:
    """The raw files of the twin, to be cached or published.

    Raises:
        UserError: bad numbers.
    """
    wanted = {"version": VERSION, "rows": rows, "seed": seed}

    def write(place) -> dict[str, object]:
        return _write({name: place(name) for name in FILES}, Twin(rows, seed), progress)

    return TwinFiles("kuairand-synth", FILES, wanted, write)


def _write(paths: dict[str, Path], twin: Twin, progress: Progress) -> dict[str, object]:
    early, late, at_random, users, videos = (paths[name] for name in FILES)
    twin.users.to_csv(users, index=False)
    twin.videos.to_csv(videos, index=False)
    probabilities = np.zeros(1 << 14)
    done = clicks = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in (early, late, at_random)]
        for file in files:
            file.write(HEADER.encode() + b"\n")
        for log in twin.logs:
            for columns, p_n in twin.blocks(log):
                is_late = columns["time_ms"] >= BORDER_MS
                if log.at_random:
                    _append(files[2], columns, np.ones(len(p_n), bool))
                    continue
                _append(files[0], columns, ~is_late)
                _append(files[1], columns, is_late)
                probabilities += np.bincount((p_n * len(probabilities)).astype(np.int64), minlength=len(probabilities))
                done, clicks = done + len(p_n), clicks + int(columns["is_click"].sum())
                progress(f"kuairand-synth: {done:,} of {twin.rows:,} rows")
    return {
        "click_rate": clicks / done,
        "bayes_auc": expected_auc((np.arange(len(probabilities)) + 0.5) / len(probabilities), probabilities),
        "bayes_auc_is": "expected AUC of the planted click probability over the standard log: no model can do better",
        "users": twin.n_users,
        "videos": twin.n_videos,
        "signal": twin.clicks.facts(),
    }


def _append(file: BinaryIO, columns: dict[str, np.ndarray], where: np.ndarray) -> None:
    table = pa.table({name: columns[name][where] for name in COLUMNS})
    pcsv.write_csv(table, file, pcsv.WriteOptions(include_header=False, quoting_style="none"))
