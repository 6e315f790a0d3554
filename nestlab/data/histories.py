"""Each user's events in the order of time, laid end to end, so that a history is one contiguous run.

Prepared beside the log: the events of user after user in memory-mapped arrays, and for each row of the log its
`place` among them and how many events of its user came before (`seen`). The last L events before a row are then the
places place − min(seen, L) … place − 1: whatever the length of the log, no search and no loop.

The log's order is stable in `time_ms`: of rows in one millisecond those further up in the files come first. What is
before a row in that order but in its own millisecond is not in its history: nobody knew then what became of it, and
where it is a copy of the row, its actions are the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

# What the events hold, and as what. The models to come also want to know how long was watched.
COLUMNS = {
    "video_id": np.int64,
    "time_ms": np.int64,
    "action": np.uint8,
    "play_time_ms": np.int64,
    "duration_ms": np.int64,
}


@dataclass(frozen=True)
class Places:
    """For n rows in the order of time: their place among the events [n] int64, and earlier events [n] int64."""

    place: np.ndarray
    seen: np.ndarray


def places(user_n: np.ndarray) -> Places:
    """From the users [n] int64 of rows in the order of time."""
    n = len(user_n)
    by_user = np.argsort(user_n, kind="stable")
    place = np.empty(n, np.int64)
    place[by_user] = np.arange(n)
    sorted_n = user_n[by_user]
    starts = np.flatnonzero(np.concatenate([[n > 0], sorted_n[1:] != sorted_n[:-1]]))
    first = np.repeat(starts, np.diff(np.append(starts, n)))
    return Places(place, place - first[place])


@dataclass(frozen=True)
class Run:
    """The histories of B samples, end to end: `lengths` [B] int64, and `index` [sum of lengths] int64 into events."""

    lengths: np.ndarray
    index: np.ndarray


def last(place_b: np.ndarray, seen_b: np.ndarray, limit: int) -> Run:
    """The newest `limit` events before each sample, the newest last."""
    lengths = np.minimum(seen_b, limit)
    ends = np.cumsum(lengths)
    # Each run is an arange; one arange over all of them is shifted to where its run starts.
    shift = place_b - ends
    return Run(lengths, np.repeat(shift, lengths) + np.arange(ends[-1] if len(ends) else 0))


def earlier(time_ms: np.ndarray, place_b: np.ndarray, seen_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place and seen [B] of the first event in each sample's own millisecond, of `time_ms` [n] of all events."""
    place_b, seen_b = place_b.copy(), seen_b.copy()
    now, open_ = time_ms[place_b], np.flatnonzero(seen_b > 0)
    while len(open_ := open_[time_ms[place_b[open_] - 1] == now[open_]]):
        place_b[open_] -= 1
        seen_b[open_] -= 1
        open_ = open_[seen_b[open_] > 0]
    return place_b, seen_b


class Events:
    """The arrays of a prepared folder, memory-mapped, by name of column."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._open:
            self._open[name] = np.load(path_of(self._folder, name), mmap_mode="r", allow_pickle=False)
        return self._open[name]


class EventsWriter:
    """Writes the arrays of n events, in the order of their places. `done`: how many of them are written."""

    def __init__(self, folder: Path, n: int, done: int = 0) -> None:
        self._files = {name: _create(path_of(folder, name), dtype, n, done) for name, dtype in COLUMNS.items()}

    def append(self, values: dict[str, np.ndarray]) -> None:
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(values[name], COLUMNS[name]).data)
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _create(path: Path, dtype: type, n: int, done: int) -> BinaryIO:
    file = open(path, "r+b" if done else "wb")  # noqa: SIM115  (its owner closes it)
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(file, header)
    file.seek(done * np.dtype(dtype).itemsize, 1)
    file.truncate()
    return file


def path_of(folder: Path, name: str) -> Path:
    return folder / f"events_{name}.npy"
