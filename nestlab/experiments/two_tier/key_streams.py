"""Streams of the unique keys of batches: real logs in their own order, their synthetic twins, and Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from nestlab import data
from nestlab.data import Dataset
from nestlab.data.loader import jagged_columns
from nestlab.data.skew import draw_ranks
from nestlab.embedding import deduplicate
from nestlab.experiments.two_tier.settings import Settings

# What is looked at by column: the tables of one width share one cache, so that several columns are one stream.
COLUMNS = {"kuairand": (("video_id",), ("user_id",)), "criteo": (tuple(f"C{i}" for i in range(1, 27)),)}
_FEWEST_BATCHES = 100  # of a stream: a data set with few rows has smaller batches
_SMALLEST_BATCH = 16


@dataclass(frozen=True, eq=False)
class KeyStream:
    """The unique keys of each batch of a log.

    Attributes:
        name: what the keys are, e.g. `video_id`.
        data: the title of the data set; says SYNTHETIC where that is so.
        kind: `real` or `synthetic`.
        batch_size: samples a batch.
        batches: [U_t] int64 each: the rows of a batch's unique keys, in order of first appearance. Rows are numbered as
            a table gives them out, by first appearance in the stream.
        uses: [distinct] int64: look-ups of each row, repeats within a batch among them.
        days: (first, one past the last) batch of every day that the log covers in full, as far as it says; of one that
            begins within a batch the batch is left out.
    """

    name: str
    data: str
    kind: str
    batch_size: int
    batches: tuple[np.ndarray, ...]
    uses: np.ndarray
    days: tuple[tuple[int, int], ...] = ()

    @property
    def distinct(self) -> int:
        """Rows of the whole stream."""
        return self.uses.size

    @property
    def label(self) -> str:
        """Data set and key in a few words, for an axis or a legend."""
        return f"{self.name}, {self.data.split(' (')[0]} ({'real' if self.kind == 'real' else 'SYNTHETIC'})"

    @cached_property
    def keys(self) -> int:
        """Unique keys of all batches: what hit rates are shares of."""
        return sum(batch.size for batch in self.batches)

    @cached_property
    def room(self) -> int:
        """The smallest cache that works: the largest |K(t) ∪ K(t−1)|."""
        pairs = zip(self.batches, (np.empty(0, np.int64), *self.batches), strict=False)
        return max((np.union1d(batch, before).size for batch, before in pairs), default=0)


def logs(settings: Settings) -> list[KeyStream]:
    """Every log under `data_root` and its twin: KuaiRand's video and user ids, Criteo's 26 columns together.

    Where no real rows lie under `data_root` the twins are all there is.
    """
    streams = []
    for family, choices in COLUMNS.items():
        opened = {d.info.title: d for d in (_open(name, settings) for name in (family, f"{family}-synth"))}
        streams += [of_dataset(d, columns, settings.batch_size) for d in opened.values() for columns in choices]
    return streams


def videos(settings: Settings) -> KeyStream:
    """KuaiRand's video ids in the order of time; of its twin where there are no real rows."""
    return of_dataset(_open("kuairand", settings), COLUMNS["kuairand"][0], settings.batch_size)


def of_dataset(dataset: Dataset, columns: tuple[str, ...], batch_size: int) -> KeyStream:
    """All rows of a data set in their order. Batches are halved until there are enough of them, but for tiny ones."""
    rows = dataset.info.rows
    while batch_size > _SMALLEST_BATCH and rows < batch_size * _FEWEST_BATCHES:
        batch_size //= 2
    arrays = [dataset.table.column(name).combine_chunks() for name in columns]
    ids, lengths = jagged_columns([a if isinstance(a, pa.Array) else pa.concat_arrays(a.chunks) for a in arrays])
    name = columns[0] if len(columns) == 1 else f"{columns[0]}–{columns[-1]}"
    keys, by_batch = _as_rows(ids, lengths.reshape(len(columns), rows), batch_size)
    info, days = dataset.info, _days(dataset, batch_size)
    return KeyStream(name, info.title, info.kind, batch_size, by_batch, np.bincount(keys), days)


def zipf(skew: float, distinct: int, samples: int, batch_size: int, seed: int = 0) -> KeyStream:
    """Ids drawn by a bounded power law, one a sample: the k-th most frequent of `distinct` has weight k^−skew."""
    ids = draw_ranks(np.random.default_rng(seed), samples, distinct, skew)
    keys, by_batch = _as_rows(ids, np.ones((1, samples), np.int64), batch_size)
    title = f"Zipf {skew:g} (SYNTHETIC, {distinct:,} ids, {samples:,} look-ups)"
    return KeyStream("ids", title, "synthetic", batch_size, by_batch, np.bincount(keys))


def _open(name: str, settings: Settings) -> Dataset:
    return data.open_dataset(name, settings.data_root, rows=settings.rows)


def _days(dataset: Dataset, batch_size: int) -> tuple[tuple[int, int], ...]:
    """Days shorter than half of the median are no full ones: a log that is a part of another begins with such."""
    if "date" not in dataset.table.column_names:
        return ()
    dates = dataset.table.column("date").to_numpy()
    begins = np.flatnonzero(np.concatenate(([True], dates[1:] != dates[:-1])))
    ends = np.append(begins[1:], dates.size)
    counts = ends - begins
    full = counts >= np.median(counts[counts >= counts.max() / 2]) / 2
    days = zip(-(-begins[full] // batch_size), ends[full] // batch_size, strict=True)
    return tuple((int(begin), int(end)) for begin, end in days if begin < end)


def _as_rows(ids: np.ndarray, lengths: np.ndarray, batch_size: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The row of every look-up, batch by batch, and the unique rows of each batch.

    Args:
        ids: [n] int64, column-major.
        lengths: [F, rows] int64: how many of them a row of the log has in each column.
    """
    columns, rows = lengths.shape
    starts = np.concatenate(([0], np.cumsum(lengths.reshape(-1))))
    ends = [*range(0, rows, batch_size), rows]
    seen: list[np.ndarray] = []
    for begin, end in pairwise(ends):
        first = np.arange(columns) * rows
        seen += [ids[starts[f + begin] : starts[f + end]] for f in first]
    sizes = np.array([part.size for part in seen]).reshape(-1, columns)
    keys = _numbered(np.concatenate(seen), np.tile(np.arange(columns), len(sizes)).repeat(sizes.reshape(-1)))
    cuts = np.concatenate(([0], np.cumsum(sizes.sum(axis=1))))
    parts = (keys[a:b] for a, b in pairwise(cuts))
    return keys, tuple(deduplicate(part, [0, part.size])[0] for part in parts)


def _numbered(ids: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[n] int64: the number of each (column, id), by first appearance."""
    order = np.lexsort((ids, columns))
    new = np.ones(ids.size, dtype=bool)
    new[1:] = (ids[order][1:] != ids[order][:-1]) | (columns[order][1:] != columns[order][:-1])
    group = np.empty(ids.size, dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return deduplicate(group, [0, ids.size])[2]
