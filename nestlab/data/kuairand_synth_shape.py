"""What tells the twins of KuaiRand-Pure and KuaiRand-27K apart: users, lengths, counts of videos, days, sessions.

Sources of the figures: the real rows of Pure, and for 27K what its authors and others counted over all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nestlab.data.frequency import FrequencyLaw
from nestlab.data.kuairand_files import K27, PURE, RANDOM, STANDARD, Variant

# fmt: off
_PURE_DAYS = (0.0, 52.7, 227.8, 278.8, 166.1, 94.7, 71.3, 58.9, 60.9, 44.0, 24.6, 18.0, 16.0, 15.0, 14.9, 14.6, 14.4,
              14.9, 14.5, 14.3, 14.0, 15.9, 21.2, 20.8, 19.5, 18.9, 17.6, 13.4, 13.8, 13.7, 15.6)
_27K_DAYS = (326, 360, 395, 372, 360, 366, 372, 390, 415, 402, 368, 361, 366, 378, 404, 428, 407, 372, 365, 371, 386,
             412, 436, 442, 430, 426, 418, 402, 391, 388, 384)
# fmt: on


@dataclass(frozen=True)
class Shape:
    """One twin's own figures.

    Attributes:
        median_length, mean_length: rows a user in the standard log; lengths are lognormal.
        least_users: that many at least where there are rows enough for them, 50 each.
        law: of the videos' counts, over the whole published log.
        days: rows of the days from 04-08 on, in any unit.
        session: share of rows that follow the user's last one within minutes.
        gap_s, gap_sigma: median of that gap in seconds, and its spread; lognormal.
        burst: how far in the log, as a part of it, a video's exposures lie from its own moment, on average.
        stay: how likely the next video is of the last one's cluster, beside what the user's tastes add.
        click_rate: of the standard log.
        tastes: how many clusters of videos a user prefers.
    """

    name: str
    variant: Variant
    median_length: float
    mean_length: float
    least_users: int
    law: FrequencyLaw
    days: tuple[float, ...]
    session: float
    gap_s: float
    gap_sigma: float
    burst: float
    stay: float
    click_rate: float
    videos: int
    pool: int
    tastes: int = 6

    @property
    def length_sigma(self) -> float:
        return math.sqrt(2 * math.log(self.mean_length / self.median_length))

    def users(self, rows: int) -> int:
        least = min(self.least_users, max(1, rows // 50))
        return max(least, round(rows / self.mean_length))

    def random_rows(self, rows: int) -> int:
        """Of the random log: the published logs' ratio."""
        return max(1, round(rows * self.variant.rows[RANDOM] / self.variant.rows[STANDARD]))

    def law_at(self, rows: int) -> FrequencyLaw:
        """The law at another size of the log.

        Pure has few videos, shown often: fewer rows have fewer videos (by the square root), each with fewer rows.
        27K has videos without end: the exponent stays, and the cut-off is the same part of the log down to a 16th of
        it; there it stays, so that a small log still has a head.
        """
        published = self.variant.rows[STANDARD]
        if self.variant is PURE:
            videos = max(min(50, rows), round(self.videos * (rows / published) ** 0.5))
            return self.law.with_mean(max(1.05, rows / videos))
        part = min(1.0, max(1 / 16, rows / published))
        return FrequencyLaw(self.law.exponent, self.law.cutoff * part, self.law.stretch)


PURE_SHAPE = Shape(
    name="kuairand-synth",
    variant=PURE,
    median_length=39,
    mean_length=53,
    least_users=1,
    law=FrequencyLaw(0.67, 168.0, 0.515),
    days=_PURE_DAYS,
    session=0.17,
    gap_s=500.0,
    gap_sigma=1.4,
    burst=0.35,
    stay=0.5,
    click_rate=0.44,
    videos=7_551,
    pool=7_583,
)
K27_SHAPE = Shape(
    name="kuairand-27k-synth",
    variant=K27,
    median_length=8_591,
    mean_length=11_796,
    least_users=64,
    law=FrequencyLaw(1.71, 957.0, 0.7),
    days=_27K_DAYS,
    session=0.95,
    gap_s=16.0,
    gap_sigma=1.0,
    burst=0.10,
    stay=0.6,
    click_rate=0.379,
    videos=32_038_725,
    pool=7_583,
)
SHAPES = (PURE_SHAPE, K27_SHAPE)
