"""How a data set's ids are looked up: what caches, dual buffers and deduplication live on, a feature at a time.

Look-ups are those of rows in the order of time, each feature as a table of its own; a missing value looks up nothing,
a list every one of its ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nestlab.data.access_kernels import reuse, stack_histogram
from nestlab.data.loader import jagged_columns
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.data.dataset import Dataset

ALL = "all"  # the line over all features, each with keys of its own


@dataclass(frozen=True)
class AccessOptions:
    """What is measured.

    Attributes:
        rows: of the data, the first so many at most: whose look-ups are counted.
        table_rows: of the data, the first so many at most: whose distinct ids make up the tables.
        batches: samples of a batch, for reuse within and between batches.
        sizes: of a cache, as shares of a table's rows, each above 0 and at most 1.

    Raises:
        UserError: a number out of place.
    """

    rows: int = 200_000
    table_rows: int = 5_000_000
    batches: tuple[int, ...] = (256, 1024, 4096, 16_384)
    sizes: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)

    def __post_init__(self) -> None:
        if self.rows < 1 or self.table_rows < self.rows:
            raise UserError(
                f"access: rows={self.rows}, table_rows={self.table_rows}: choose 1 or more, the second larger"
            )
        if not self.batches or min(self.batches) < 1:
            raise UserError(f"access: batches={self.batches}: choose sizes of 1 or more samples")
        if not self.sizes or not all(0 < size <= 1 for size in self.sizes):
            raise UserError(f"access: sizes={self.sizes}: shares of a table lie above 0 and at most at 1")


@dataclass(frozen=True)
class Accesses:
    """The look-ups of one feature: `codes` [n] int64, keys numbered from 0; `ends` [samples] int64, where each sample
    ends in them; `keys` distinct ones, of a table of `table` rows."""

    feature: str
    codes: np.ndarray
    ends: np.ndarray
    keys: int
    table: int


def access_statistics(dataset: Dataset, options: AccessOptions | None = None) -> dict[str, pd.DataFrame]:
    """Three tables of a prepared data set.

    `access`: a line a feature:
        rows: of its table: distinct ids; lookups: counted here; active_share: rows looked up at least once.
        entropy_bits: −Σ p·log₂ p over shares p of look-ups; entropy_share: of log₂(rows looked up), 1 = uniform.
        rows_for_90: the share of the table that takes 90 % of the look-ups.
    `reuse`: a line a feature and batch size, and one over all features: batches (whole ones), unique_share (distinct
        keys over look-ups), overlap (the share of a batch's distinct keys that the batch before has), active_share
        (rows of the table that a batch touches).
    `miss_ratio`: a line a feature and cache size: slots, miss_ratio under LRU, look-up by look-up; cold (the share of
        first look-ups, which miss in any cache that starts empty).
    """
    options = options or AccessOptions()
    entries, reused, missed = [], [], []
    for accesses in accesses_of(dataset, options):
        entries.append(_entry(accesses))
        reused += _reuse(accesses, options.batches)
        missed += miss_ratio(accesses, options.sizes)
    return {
        "access": pd.DataFrame(entries),
        "reuse": _with_ratios(pd.DataFrame(reused)),
        "miss_ratio": pd.DataFrame(missed),
    }


def accesses_of(dataset: Dataset, options: AccessOptions) -> Iterator[Accesses]:
    """The look-ups of each feature in turn; memory is that of one feature."""
    rows = dataset.table.slice(0, options.rows)
    columns = dataset.feature_columns(rows)
    more = dataset.table.slice(options.rows, options.table_rows - options.rows)
    beyond = dataset.feature_columns(more) if more.num_rows else {}
    for feature in dataset.features:
        ids, lengths = jagged_columns([columns[feature]])
        keys, codes = np.unique(ids, return_inverse=True)
        further = jagged_columns([beyond[feature]])[0] if beyond else ids[:0]
        table = len(keys) + len(np.setdiff1d(further, keys))
        yield Accesses(feature, codes.reshape(-1).astype(np.int64), np.cumsum(lengths), len(keys), table)


def miss_ratio(accesses: Accesses, sizes: tuple[float, ...]) -> list[dict[str, object]]:
    """The exact miss-ratio curve of LRU, from one pass over the look-ups."""
    histogram = stack_histogram(accesses.codes, accesses.keys)
    hits, lookups = np.concatenate([[0], np.cumsum(histogram[:-1])]), max(1, len(accesses.codes))
    lines = []
    for size in sizes:
        slots = max(1, round(size * accesses.table))
        ratio = 1.0 - float(hits[min(slots, accesses.keys)]) / lookups if len(accesses.codes) else 0.0
        cold = float(histogram[-1]) / lookups
        lines.append({"feature": accesses.feature, "size": size, "slots": slots, "miss_ratio": ratio, "cold": cold})
    return lines


def _entry(accesses: Accesses) -> dict[str, object]:
    counts = np.sort(np.bincount(accesses.codes, minlength=accesses.keys))[::-1]
    total = int(counts.sum())
    shares = counts / max(1, total)
    entropy = float((shares * np.log2(1 / shares)).sum())  # every key here was looked up
    most = int(np.searchsorted(np.cumsum(counts), 0.9 * total)) + 1 if total else 0
    table = max(1, accesses.table)
    return {
        "feature": accesses.feature,
        "rows": accesses.table,
        "lookups": total,
        "active_share": accesses.keys / table,
        "entropy_bits": entropy,
        "entropy_share": entropy / np.log2(accesses.keys) if accesses.keys > 1 else 0.0,
        "rows_for_90": most / table,
    }


def _reuse(accesses: Accesses, sizes: tuple[int, ...]) -> list[dict[str, object]]:
    """Sums over whole batches; ratios are taken when the line over all features is there too."""
    lines = []
    for size in sizes:
        ends = accesses.ends[size - 1 :: size].astype(np.int64)
        unique, shared = reuse(accesses.codes, ends, accesses.keys)
        line = {"batch": size, "feature": accesses.feature, "batches": len(ends), "rows": accesses.table}
        line |= {"lookups": int(ends[-1]) if len(ends) else 0, "unique": int(unique.sum())}
        lines.append({**line, "shared": int(shared.sum()), "followed": int(unique[1:].sum())})
    return lines


def _with_ratios(sums: pd.DataFrame) -> pd.DataFrame:
    """Ratios of sums, those without anything to divide by NaN: no batch is whole, or none follows another."""
    over_all = sums.groupby("batch", sort=False, as_index=False).agg(
        {"batches": "first", **dict.fromkeys(("rows", "lookups", "unique", "shared", "followed"), "sum")}
    )
    frame = pd.concat([sums, over_all.assign(feature=ALL)], ignore_index=True)
    some = frame.where(frame.select_dtypes("number") != 0) if len(frame) else frame
    frame["unique_share"] = frame.unique / some.lookups
    frame["overlap"] = frame.shared / some.followed
    frame["active_share"] = frame.unique / (some.batches * some.rows)
    return frame[["batch", "feature", "batches", "lookups", "unique_share", "overlap", "active_share"]]
