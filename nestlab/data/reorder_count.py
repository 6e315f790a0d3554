"""The ids of a prepared data set, read column by column, and how often each occurs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nestlab.data.dataset import Dataset
from nestlab.data.loader import jagged_columns
from nestlab.data.prepare import Progress

BLOCK = 1 << 16  # samples read at a time, about


class Tally:
    """Sums by key of any number of (key, value) arrays; memory: twice the distinct keys, and an array or two more."""

    _LEAST = 1 << 20  # values kept before they are folded in

    def __init__(self, dtype: type) -> None:
        self._keys, self._sums = np.zeros(0, np.int64), np.zeros(0, dtype)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._size = 0

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        self._waiting.append((keys, values))
        self._size += len(keys)
        if self._size >= max(self._LEAST, len(self._keys)):  # so that each key is sorted a few times only
            self._fold()

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct keys [n] int64, ascending, and the sum of the values of each [n]."""
        self._fold()
        return self._keys, self._sums

    def _fold(self) -> None:
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        values = np.concatenate([self._sums, *(values for _, values in self._waiting)])
        self._waiting, self._size = [], 0
        order = np.argsort(keys, kind="stable")  # stable: the order of a sum, and with it its last bit, is fixed
        keys, values = keys[order], values[order]
        starts = np.flatnonzero(np.concatenate([[len(keys) > 0], keys[1:] != keys[:-1]]))
        self._keys, self._sums = keys[starts], np.add.reduceat(values, starts) if len(starts) else values


def blocks(
    dataset: Dataset, split: str, features: Sequence[str], samples: int = BLOCK
) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Each feature's (ids [n] int64, lengths [samples] int64), `samples` samples of the split at a time, in order."""
    first, stop = dataset.rows(split)
    for start in range(first, stop, samples):
        columns = dataset.feature_columns(dataset.table.slice(start, min(samples, stop - start)))
        yield {name: jagged_columns([columns[name]]) for name in features}


def count_ids(
    dataset: Dataset, split: str, features: Sequence[str], progress: Progress
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each feature's distinct ids [n] int64, ascending, and how often each occurs in the split [n] int64."""
    tallies = {name: Tally(np.int64) for name in features}
    for number, block in enumerate(blocks(dataset, split, features)):
        for name, (ids, _) in block.items():
            tallies[name].add(*np.unique(ids, return_counts=True))
        progress(f"{dataset.info.id}: ids of {split} counted, {number + 1} × {BLOCK:,} rows")
    return {name: tally.result() for name, tally in tallies.items()}
