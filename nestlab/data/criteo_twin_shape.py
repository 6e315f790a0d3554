"""What tells the twins of Criteo Kaggle and Criteo 1TB apart: aggregate statistics of real rows, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nestlab.data.skew import tail_exponent

LEVELS = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)  # of the quantiles below


@dataclass(frozen=True)
class CriteoShape:
    """One twin's own figures; a column's values are those that are not missing.

    Attributes:
        raw: the file's name; folder: where `nestlab data synth` puts it, below the given one.
        stream: the first of the 26 streams of hashes: the two data sets share no ids.
        published: rows of the real data, for which `cardinality` was counted.
        top_share: of the commonest id among the values.
        ids, of: how many distinct ids the first `of` rows show: what decides on the tail.
        quantiles: of the values of 0 or more, at LEVELS.
        negative: the one column with negative values, their share, and how often they are −1, −2 and −3.
        missing: columns that are missing together, and how often.
    """

    name: str
    folder: str
    raw: str
    stream: int
    published: int
    click_rate: float
    cardinality: tuple[int, ...]
    top_share: tuple[float, ...]
    ids: tuple[int, ...]
    of: int
    quantiles: tuple[tuple[int, ...], ...]
    negative: tuple[str, float, tuple[float, float, float]]
    missing: tuple[tuple[float, tuple[str, ...]], ...]

    @cached_property
    def log_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and spread [13] of log(1 + value), of the values of 0 or more."""
        levels = (np.arange(2_000) + 0.5) / 2_000
        logs = np.stack([np.interp(levels, LEVELS, np.log1p(q)) for q in self.quantiles])
        return logs.mean(axis=1), logs.std(axis=1)

    def cardinality_at(self, rows: int) -> list[int]:
        """Fewer rows show fewer ids: the exponent is that of Heaps' law, the floor keeps small columns whole."""
        scale = min(1.0, rows / self.published) ** 0.75
        return [min(c, max(4 * seen, round(c * scale))) for c, seen in zip(self.cardinality, self.ids, strict=True)]

    def tails_at(self, cardinality: list[int]) -> list[float]:
        """The exponents of the power laws of all ids but the commonest."""
        columns = zip(cardinality, self.top_share, self.ids, self._shown(), strict=True)
        return [tail_exponent(k, top, ids, shown) for k, top, ids, shown in columns]

    def _shown(self) -> list[int]:
        """Values among `of` rows, by column."""
        gone = {name: share for share, group in self.missing for name in group}
        return [round(self.of * (1 - gone.get(f"C{i}", 0.0))) for i in range(1, 27)]


# fmt: off
KAGGLE_SHAPE = CriteoShape(
    name="criteo-synth", folder="", raw="criteo-synth.tsv", stream=0, published=45_840_617, click_rate=0.256,
    cardinality=(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306,
                 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
    top_share=(.50, .11, .057, .09, .67, .46, .013, .59, .90, .27, .027, .057, .029, .35, .03, .057,
               .42, .054, .56, .34, .057, .51, .47, .10, .37, .07),
    ids=(53, 191, 674, 566, 22, 6, 696, 28, 2, 531, 605, 648, 552, 15, 518, 619, 9, 359, 123, 3, 633, 5, 12, 420, 28,
         321),
    of=1_000,
    quantiles=(
        (0, 0, 0, 0, 0, 0, 1, 1, 2, 4, 8, 20, 56, 88),
        (0, 0, 0, 0, 1, 2, 5, 16, 35, 78, 272, 884, 2717, 3472),
        (0, 1, 1, 2, 3, 4, 6, 9, 13, 25, 56, 90, 378, 8457),
        (0, 0, 1, 1, 2, 3, 4, 6, 9, 13, 20, 27, 49, 87),
        (0, 5, 24, 152, 587, 1582, 2923, 4441, 7314, 13934, 30682, 42496, 184463, 893008),
        (0, 0, 2, 7, 16, 29, 44, 75, 114, 186, 367, 617, 1993, 4638),
        (0, 0, 0, 0, 1, 2, 3, 5, 8, 14, 29, 57, 184, 825),
        (0, 0, 0, 1, 3, 5, 8, 12, 18, 25, 36, 42, 48, 289),
        (0, 1, 3, 8, 16, 30, 47, 69, 106, 181, 345, 562, 1274, 5637),
        (0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3),
        (0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 5, 9, 17, 32),
        (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 4, 12, 98),
        (0, 0, 1, 2, 2, 4, 5, 8, 12, 17, 27, 41, 67, 150),
    ),
    negative=("I2", 0.105, (0.985, 0.014, 0.001)),
    missing=(
        (.445, ("I1", "I10")), (.778, ("I12",)), (.219, ("I3",)), (.207, ("I4", "I13")), (.247, ("I6",)),
        (.047, ("I7", "I9", "I11")), (.045, ("I5",)), (.813, ("C22",)), (.475, ("C19", "C20", "C25", "C26")),
        (.129, ("C6",)), (.034, ("C3", "C4", "C12", "C16", "C21", "C24")),
    ),
)
TERABYTE_SHAPE = CriteoShape(
    name="criteo-1tb-synth", folder="criteo-1tb", raw="day_0", stream=100, published=4_373_472_329, click_rate=0.034,
    cardinality=(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267,
                 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
    top_share=(.295, .109, .036, .278, .208, .882, .042, .113, .523, .295, .296, .268, .327, .795, .109, .80, .776,
               .509, .513, .295, .295, .295, .551, .036, .524, .344),
    ids=(1381, 1190, 1805, 479, 881, 3, 1368, 391, 18, 1305, 824, 1892, 9, 209, 798, 27, 3, 126, 12, 1396, 1121, 1355,
         652, 1485, 24, 23),
    of=5_000,
    quantiles=(
        (1, 1, 1, 2, 3, 4, 7, 10, 16, 27, 54, 92, 241, 3906),
        (1, 7, 18, 46, 86, 143, 215, 307, 439, 650, 1103, 1697, 3736, 7969),
        (0, 0, 0, 1, 2, 2, 4, 5, 7, 10, 16, 22, 40, 110),
        (0, 1, 2, 7, 14, 23, 36, 58, 93, 153, 332, 539, 1675, 9530),
        (1, 1, 1, 2, 2, 4, 6, 8, 13, 21, 46, 93, 350, 2547),
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 5, 21, 222),
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 29),
        (0, 0, 0, 1, 1, 3, 8, 20, 47, 80, 247, 567, 2274, 3676),
        (0, 0, 0, 0, 1, 3, 5, 7, 11, 16, 26, 34, 46, 49),
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 5),
        (1, 1, 1, 1, 1, 1, 2, 2, 3, 5, 9, 15, 38, 94),
        (0, 7, 31, 326, 1115, 1876, 3651, 6111, 10082, 17193, 33237, 72157, 360002, 1136257),
        (0, 1, 1, 1, 2, 3, 5, 6, 9, 13, 21, 31, 70, 209),
    ),
    negative=("I8", 0.06, (1.0, 0.0, 0.0)),
    missing=(
        (.254, ("I3", "I13")), (.493, ("I4",)), (.465, ("I5", "I11")), (.092, ("I6", "I10")), (.239, ("I1",)),
        (.102, ("I2",)), (.032, ("I7",)), (.016, ("I12",)), (.467, ("C14", "C16", "C17", "C23")),
        (.026, ("C1", "C10", "C11", "C20", "C21", "C22")),
    ),
)
# fmt: on
SHAPES = (KAGGLE_SHAPE, TERABYTE_SHAPE)
