"""Synthetic twins of Criteo Kaggle and Criteo 1TB in the raw file format, with labels from a planted signal.

What is copied from the real data: the format, the columns' missing shares and the groups of columns that are missing
together, the quantiles of every integer column (one with negatives), of every categorical column the cardinality (of
the whole data, scaled), the share of the commonest id and the number of ids in the first rows, the click rate. What is
not: the order of time (rows are independent) and any correlation beyond the missing groups and the label.

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
from nestlab.data.criteo_twin_shape import KAGGLE_SHAPE, LEVELS, CriteoShape
from nestlab.data.planted import Signal, expected_auc, hash64
from nestlab.data.prepare import Progress
from nestlab.data.skew import draw_with_top
from nestlab.data.twins import TwinFiles

VERSION = 3  # raise it whenever the same rows and seed would give another file
BLOCK = 1 << 14
BAYES_AUC = 0.80
MISSING, TOP_SHARE = KAGGLE_SHAPE.missing, KAGGLE_SHAPE.top_share


@dataclass(frozen=True)
class Block:
    """n rows: dense_nd [n, 13] int64, ranks_nf [n, 26] int64 (1 is the commonest id), missing [n, 39] bool."""

    dense_nd: np.ndarray
    ranks_nf: np.ndarray
    missing: np.ndarray


class Twin:
    """The generator for a number of rows and a seed."""

    def __init__(self, rows: int, seed: int = 0, shape: CriteoShape = KAGGLE_SHAPE) -> None:
        self.rows, self.seed, self.shape = rows, seed, shape
        self.cardinality = shape.cardinality_at(rows)
        self.exponents = shape.tails_at(self.cardinality)
        self.signal = Signal(seed, *shape.log_moments)
        self._logs = [np.log1p(quantiles) for quantiles in shape.quantiles]
        # Block 0 of another stream: the rows of the file must not decide what is planted.
        sample = self._features(np.random.default_rng([seed, 1, 0]), 20_000)
        self.signal.calibrate(sample.dense_nd, sample.ranks_nf, sample.missing, shape.click_rate, BAYES_AUC)

    def blocks(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields (rows as text columns in the raw format, the planted click probabilities [n] float64)."""
        for number, start in enumerate(range(0, self.rows, BLOCK)):
            rng = np.random.default_rng([self.seed, 0, number])
            block = self._features(rng, BLOCK)
            p_n = self.signal.probability(block.dense_nd, block.ranks_nf, block.missing)
            labels = (rng.random(BLOCK) < p_n).astype(np.int8)
            n = min(BLOCK, self.rows - start)
            yield _text(block, labels, self.shape.stream).slice(0, n), p_n[:n]

    def _features(self, rng: np.random.Generator, n: int) -> Block:
        missing = np.zeros((n, len(COLUMNS) - 1), bool)
        for share, group in self.shape.missing:
            together = rng.random(n) < share
            for name in group:
                missing[:, COLUMNS.index(name) - 1] = together
        dense = np.stack([self._dense(rng, i, n) for i in range(len(DENSE_NAMES))], axis=1)
        laws = zip(self.cardinality, self.shape.top_share, self.exponents, strict=True)
        ranks = np.stack([draw_with_top(rng, n, *law) for law in laws], axis=1)
        return Block(dense, ranks, missing)

    def _dense(self, rng: np.random.Generator, i: int, n: int) -> np.ndarray:
        values = np.rint(np.expm1(np.interp(rng.random(n), LEVELS, self._logs[i]))).astype(np.int64)
        name, share, often = self.shape.negative
        if DENSE_NAMES[i] == name:
            negative = rng.random(n) < share
            values[negative] = -rng.choice((1, 2, 3), n, p=often)[negative]
        return values


def twin_files(
    rows: int, seed: int, progress: Progress = lambda message: None, shape: CriteoShape = KAGGLE_SHAPE
) -> TwinFiles:
    """The raw file of the twin, to be cached or published.

    Raises:
        UserError: bad numbers.
    """
    wanted = {"version": VERSION, "rows": rows, "seed": seed}

    def write(place) -> dict[str, object]:
        return _write(place(shape.raw), Twin(rows, seed, shape), progress)

    return TwinFiles(shape.name, (shape.raw,), wanted, write)


def _write(raw: Path, twin: Twin, progress: Progress) -> dict[str, object]:
    options = pcsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    probabilities = np.zeros(1 << 14)
    done = clicks = 0
    with open(raw, "wb") as file:
        for table, p_n in twin.blocks():
            pcsv.write_csv(table, file, options)
            probabilities += np.bincount((p_n * len(probabilities)).astype(np.int64), minlength=len(probabilities))
            done, clicks = done + table.num_rows, clicks + int(np.count_nonzero(table.column("label")))
            progress(f"{twin.shape.name}: {done:,} of {twin.rows:,} rows")
    return {
        "click_rate": clicks / done,
        "bayes_auc": expected_auc((np.arange(len(probabilities)) + 0.5) / len(probabilities), probabilities),
        "bayes_auc_is": "expected AUC of the planted click probability over these rows: no model can do better",
        "cardinality": dict(zip(FEATURES, twin.cardinality, strict=True)),
        "signal": twin.signal.facts(),
    }


def _text(block: Block, labels: np.ndarray, stream: int) -> pa.Table:
    arrays = [pa.array(labels)]
    for i in range(len(DENSE_NAMES)):
        arrays.append(pa.array(block.dense_nd[:, i], mask=block.missing[:, i]))
    for f in range(len(FEATURES)):
        missing = block.missing[:, len(DENSE_NAMES) + f]
        arrays.append(_hex_strings(hash64(stream + f, block.ranks_nf[:, f]) & np.uint64(0xFFFFFFFF), missing))
    return pa.Table.from_arrays(arrays, names=list(COLUMNS))


def _hex_strings(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    shifts = np.arange(28, -4, -4, dtype=np.uint64)
    nibbles = ((values[:, None] >> shifts) & np.uint64(15)).astype(np.uint8)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
    offsets = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    validity = pa.array(~missing).buffers()[1]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()), validity)
