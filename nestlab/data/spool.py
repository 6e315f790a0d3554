"""Sorting more rows than fit in memory: sorted runs on disk, then read together, one range of keys after the other.

An external merge sort (Knuth, The Art of Computer Programming 3, section 5.4) without the merging: a range of keys is
cut from every run, the pieces are laid end to end in the order of the runs, and sorted again, stably. What is resident
is one piece and a 256th of the keys.

Every column of a run is stored as its distance from the run's smallest value, in as few bytes as that needs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nestlab.data.text_kernels import radix_order

PIECE = 1 << 19  # rows that are sorted at a time, more or less
_SAMPLE, _STAGGER = 256, 151

Packed = tuple[int, np.ndarray]


def order_of(keys: np.ndarray) -> np.ndarray:
    """The stable ascending order [n] int64 of keys [n] int64."""
    if not len(keys):
        return np.zeros(0, np.int64)
    low, high = int(keys.min()), int(keys.max())
    bits = (high - low).bit_length()
    # The kernel is compiled for keys that lie side by side alone.
    return radix_order(np.ascontiguousarray(keys), low, bits) if bits < 63 else np.argsort(keys, kind="stable")


def pack(values: np.ndarray) -> Packed:
    """The smallest value, and the distances from it in the narrowest type; such as they are if no type would do."""
    if not len(values):
        return 0, values.astype(np.uint8)
    low, high = int(values.min()), int(values.max())
    for dtype in (np.uint8, np.uint16, np.uint32):
        if high - low <= np.iinfo(dtype).max:
            # Modulo 2^64 the distance is right even where the subtraction leaves int64's range.
            return low, (values - values.dtype.type(low)).astype(dtype)
    return 0, values.astype(np.int64)


@dataclass(frozen=True)
class Run:
    """Sorted rows in the spool's file: where their first column starts, how many they are, (low, width) by column."""

    start: int
    rows: int
    heads: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        return self.start + self.rows * sum(width for _, width in self.heads)

    def to_json(self) -> list[Any]:
        return [self.start, self.rows, self.heads]

    @staticmethod
    def from_json(value: list[Any]) -> Run:
        start, rows, heads = value
        return Run(start, rows, tuple((low, width) for low, width in heads))


class Spool:
    """The file of the runs. `runs`: those that an earlier process wrote; what lies behind them is cut off."""

    def __init__(self, path: Path, runs: Sequence[Run] = ()) -> None:
        self.path, self.runs = path, list(runs)
        end = self.runs[-1].end if self.runs else 0
        self._file = open(path, "r+b" if end else "wb")  # noqa: SIM115  (finish closes it)
        self._file.truncate(end)
        self._file.seek(end)

    def add(self, columns: Sequence[Packed]) -> Run:
        """Appends rows, packed column by column, sorted by the key column."""
        start = self._file.tell()
        for _, values in columns:
            self._file.write(np.ascontiguousarray(values).data)
        self._file.flush()
        run = Run(start, len(columns[0][1]), tuple((low, values.itemsize) for low, values in columns))
        self.runs.append(run)
        return run

    def finish(self) -> Runs:
        """No more is added."""
        self._file.close()
        return Runs(self.path, self.runs)


@dataclass(frozen=True)
class Piece:
    """The rows of one range of keys: columns [C] of [n] int64, run after run, and how many each run gave, [R]."""

    columns: list[np.ndarray]
    counts: np.ndarray


class Runs:
    """The runs of a finished spool, read by ranges of keys."""

    def __init__(self, path: Path, runs: Sequence[Run]) -> None:
        self.path, self.runs = path, list(runs)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (close closes it)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def close(self) -> None:
        self._file.close()

    def column(self, run: int, column: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start … stop−1 of a run, [n] int64."""
        stop = self.runs[run].rows if stop is None else stop
        values = np.empty(stop - start, np.int64)
        self._read(self.runs[run], column, start, values)
        return values

    def borders(self, key: int, size: int = PIECE) -> np.ndarray:
        """Keys [P−1] int64 that part the rows into P ranges of about `size` rows; equal keys are never parted.

        A range may have a 256th of all runs' lengths more rows than `size`, and as many as share one key.
        """
        step = max(1, min(_SAMPLE, size // 16))
        # Each run starts elsewhere: were all sampled at their first row, every border would lie too low.
        samples = [self.column(run, key)[run * _STAGGER % step :: step] for run in range(len(self.runs))]
        keys = np.sort(np.concatenate([*samples, np.zeros(0, np.int64)]))
        return np.unique(keys[max(1, size // step) :: max(1, size // step)])

    def cuts(self, key: int, borders: np.ndarray) -> np.ndarray:
        """[P+1, R] int64: where in each run each of the ranges starts; the last line is where they all end."""
        cuts = np.zeros((len(borders) + 2, len(self.runs)), np.int64)
        for run in range(len(self.runs)):
            cuts[1:-1, run] = np.searchsorted(self.column(run, key), borders, side="left")
            cuts[-1, run] = self.runs[run].rows
        return cuts

    def piece(self, starts: np.ndarray, stops: np.ndarray) -> Piece:
        """Rows starts[r] … stops[r]−1 of every run r. May be called by many threads at once."""
        counts = stops - starts
        ends = np.cumsum(counts)
        columns = [np.empty(int(ends[-1]) if len(ends) else 0, np.int64) for _ in self.runs[0].heads]
        for run in np.flatnonzero(counts).tolist():
            for column, values in enumerate(columns):
                self._read(self.runs[run], column, int(starts[run]), values[ends[run] - counts[run] : ends[run]])
        return Piece(columns, counts)

    def _read(self, run: Run, column: int, start: int, out: np.ndarray) -> None:
        before = sum(width for _, width in run.heads[:column]) * run.rows
        low, width = run.heads[column]
        raw = os.pread(self._file.fileno(), len(out) * width, run.start + before + start * width)
        if len(raw) != len(out) * width:
            raise OSError(errno.ENODATA, "shorter than it was written", str(self.path))
        dtype = np.dtype(f"u{width}") if width < 8 else np.dtype(np.int64)
        np.add(np.frombuffer(raw, dtype), low, out=out, dtype=np.int64, casting="unsafe")
