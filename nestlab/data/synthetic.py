"""criteo-synth: a synthetic twin of Criteo Kaggle in the raw file format, with labels from a planted signal.

What is copied from the real data: the format, the columns' missing shares and the groups of columns that are missing
together, the level and spread of every integer column (one with negatives), the cardinality and the share of the
commonest id of every categorical column, the click rate. What is not: the order of time (rows are independent) and
any correlation beyond the missing groups and the label.

Rows are made in blocks of fixed size, each from a generator of its own keyed by (seed, block): the file does not
depend on how it is written, and memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from nestlab.data.criteo_format import COLUMNS, DENSE_NAMES, FEATURES
from nestlab.data.planted import Signal, expected_auc, hash64
from nestlab.data.prepare import Progress
from nestlab.data.skew import draw_ranks, exponent_for
from nestlab.data.twins import TwinFiles

VERSION = 2  # raise it whenever the same rows and seed would give another file
BLOCK = 1 << 14
CLICK_RATE = 0.25
BAYES_AUC = 0.80
RAW = "criteo-synth.tsv"

KAGGLE_ROWS = 45_840_617
# fmt: off
CARDINALITY = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306,
               10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
# The share of the commonest id among the values present.
TOP_SHARE = (.50, .11, .057, .09, .67, .46, .013, .59, .90, .27, .027, .057, .029, .35, .03, .057,
             .42, .054, .56, .34, .057, .51, .47, .10, .37, .07)
# Mean and spread of log(1 + max(x, 0)).
LOG_MEAN = (.8, 2.1, 2.2, 1.7, 7.3, 3.7, 1.5, 2.1, 3.7, .4, .85, .35, 1.9)
LOG_SD = (1.0, 2.2, 1.3, 1.0, 2.7, 1.8, 1.35, 1.2, 1.7, .4, .75, .7, 1.05)
# Columns that are missing together, and how often.
MISSING = (
    (.445, ("I1", "I10")), (.778, ("I12",)), (.219, ("I3",)), (.207, ("I4", "I13")), (.247, ("I6",)),
    (.047, ("I7", "I9", "I11")), (.045, ("I5",)), (.813, ("C22",)), (.475, ("C19", "C20", "C25", "C26")),
    (.129, ("C6",)), (.034, ("C3", "C4", "C12", "C16", "C21", "C24")),
)
# fmt: on
NEGATIVE, NEGATIVE_SHARE = "I2", 0.105  # the only integer column with negative values: -1 … -3


@dataclass(frozen=True)
class Block:
    """n rows: dense_nd [n, 13] int64, ranks_nf [n, 26] int64 (1 is the commonest id), missing [n, 39] bool."""

    dense_nd: np.ndarray
    ranks_nf: np.ndarray
    missing: np.ndarray


class Twin:
    """The generator for a number of rows and a seed."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rows, self.seed = rows, seed
        # Fewer rows show fewer ids: the exponent is that of Heaps' law, the floor keeps small columns whole.
        scale = min(1.0, rows / KAGGLE_ROWS) ** 0.75
        self.cardinality = [min(c, max(1000, round(c * scale))) for c in CARDINALITY]
        self.exponents = [exponent_for(k, top) for k, top in zip(self.cardinality, TOP_SHARE, strict=True)]
        self.signal = Signal(seed, np.array(LOG_MEAN), np.array(LOG_SD))
        # Block 0 of another stream: the rows of the file must not decide what is planted.
        sample = self._features(np.random.default_rng([seed, 1, 0]), 20_000)
        self.signal.calibrate(sample.dense_nd, sample.ranks_nf, sample.missing, CLICK_RATE, BAYES_AUC)

    def blocks(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields (rows as text columns in the raw format, the planted click probabilities [n] float64)."""
        for number, start in enumerate(range(0, self.rows, BLOCK)):
            rng = np.random.default_rng([self.seed, 0, number])
            block = self._features(rng, BLOCK)
            p_n = self.signal.probability(block.dense_nd, block.ranks_nf, block.missing)
            labels = (rng.random(BLOCK) < p_n).astype(np.int8)
            n = min(BLOCK, self.rows - start)
            yield _text(block, labels).slice(0, n), p_n[:n]

    def _features(self, rng: np.random.Generator, n: int) -> Block:
        missing = np.zeros((n, len(COLUMNS) - 1), bool)
        for share, group in MISSING:
            together = rng.random(n) < share
            for name in group:
                missing[:, COLUMNS.index(name) - 1] = together
        dense = np.stack([self._dense(rng, i, n) for i in range(len(DENSE_NAMES))], axis=1)
        ranks = np.stack(
            [draw_ranks(rng, n, k, s) for k, s in zip(self.cardinality, self.exponents, strict=True)], axis=1
        )
        return Block(dense, ranks, missing)

    def _dense(self, rng: np.random.Generator, i: int, n: int) -> np.ndarray:
        logs = np.clip(rng.normal(LOG_MEAN[i], LOG_SD[i], n), 0.0, 14.5)
        values = np.rint(np.expm1(logs)).astype(np.int64)
        if DENSE_NAMES[i] == NEGATIVE:
            negative = rng.random(n) < NEGATIVE_SHARE
            values[negative] = -rng.choice((1, 2, 3), n, p=(0.9, 0.09, 0.01))[negative]
        return values


def twin_files(rows: int, seed: int, progress: Progress = lambda message: None) -> TwinFiles:
    """The raw file of the twin, to be cached or published.

    Raises:
        UserError: bad numbers.
    """
    wanted = {"version": VERSION, "rows": rows, "seed": seed}
    return TwinFiles("criteo-synth", (RAW,), wanted, lambda place: _write(place(RAW), Twin(rows, seed), progress))


def _write(raw: Path, twin: Twin, progress: Progress) -> dict[str, object]:
    options = pcsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    probabilities = np.zeros(1 << 14)
    done = clicks = 0
    with open(raw, "wb") as file:
        for table, p_n in twin.blocks():
            pcsv.write_csv(table, file, options)
            probabilities += np.bincount((p_n * len(probabilities)).astype(np.int64), minlength=len(probabilities))
            done, clicks = done + table.num_rows, clicks + int(np.count_nonzero(table.column("label")))
            progress(f"criteo-synth: {done:,} of {twin.rows:,} rows")
    return {
        "click_rate": clicks / done,
        "bayes_auc": expected_auc((np.arange(len(probabilities)) + 0.5) / len(probabilities), probabilities),
        "bayes_auc_is": "expected AUC of the planted click probability over these rows: no model can do better",
        "cardinality": dict(zip(FEATURES, twin.cardinality, strict=True)),
        "signal": twin.signal.facts(),
    }


def _text(block: Block, labels: np.ndarray) -> pa.Table:
    arrays = [pa.array(labels)]
    for i in range(len(DENSE_NAMES)):
        arrays.append(pa.array(block.dense_nd[:, i], mask=block.missing[:, i]))
    for f in range(len(FEATURES)):
        missing = block.missing[:, len(DENSE_NAMES) + f]
        arrays.append(_hex_strings(hash64(f, block.ranks_nf[:, f]) & np.uint64(0xFFFFFFFF), missing))
    return pa.Table.from_arrays(arrays, names=list(COLUMNS))


def _hex_strings(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    shifts = np.arange(28, -4, -4, dtype=np.uint64)
    nibbles = ((values[:, None] >> shifts) & np.uint64(15)).astype(np.uint8)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
    offsets = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    validity = pa.array(~missing).buffers()[1]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()), validity)
