"""The second pass over KuaiRand's log: sorted runs → rows in the order of time, joined by position; events by user.

The order is that of `time_ms`, and within a millisecond that of the files: stable. A row that equals an earlier one
in all 19 columns shares its millisecond, and so its piece. Where a user's events start among all events is known
beforehand, from counts by user; how many of them came before a row, from a counter by user that goes along.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from nestlab.data.columns import ColumnWriter, read_column
from nestlab.data.histories import EventsWriter
from nestlab.data.journal import SPOOL, Journal
from nestlab.data.kuairand_format import NUMBERS, SCHEMA, Rows, row_hashes
from nestlab.data.kuairand_runs import FLAGS_COLUMN, TIME, LogRuns
from nestlab.data.positions import Distinct, Finder
from nestlab.data.prepare import ahead
from nestlab.data.spool import PIECE, Packed, Run, Runs, Spool, order_of, pack
from nestlab.data.stages import Stage
from nestlab.data.text_kernels import count_up

ADDED = {"user_position": pa.int32(), "video_position": pa.int32(), "place": pa.int64(), "seen": pa.int64()}
LOG_SCHEMA = pa.schema([*SCHEMA, *(pa.field(name, type_, nullable=False) for name, type_ in ADDED.items())])
LOG = "log"  # the folder of its columns
_USER, _VIDEO = NUMBERS.index("user_id"), NUMBERS.index("video_id")
_OF_EVENTS = ("video_id", "time_ms", "play_time_ms", "duration_ms")  # behind the place; the action mask is last
_REPLAYED = 1 << 20


def warm_up() -> None:
    """Compiles the kernel, or loads it from numba's cache."""
    count_up(np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64))


@dataclass(frozen=True)
class Merged:
    """What was counted: rows written; copies of earlier rows by file; users, videos, rows without features of each."""

    rows: int
    duplicates: list[int]
    users: int
    videos: int
    without_user: int
    without_video: int
    events: Runs


@dataclass(frozen=True)
class _Piece:
    """Rows in the order of time; for each the number of its user and the positions of its features."""

    rows: Rows
    user: np.ndarray
    user_position: np.ndarray
    video_position: np.ndarray
    duplicates: np.ndarray
    dropped: np.ndarray


@dataclass
class Merger:
    """Writes the log into `folder/log` and the events into sorted runs; goes on where the journal ends.

    Attributes:
        features: finders of the users' and the videos' feature tables.
        drop: whether copies are left out.
    """

    folder: Path
    log: LogRuns
    features: tuple[Finder, Finder]
    drop: bool
    journal: Journal
    stage: Stage

    def run(self) -> Merged:
        self._cuts = self.log.runs.cuts(TIME, self.log.runs.borders(TIME, PIECE))
        users, counts = self._count_users()
        self._users, self._user_position = Finder(users), self.features[0].positions(users)
        counts -= self._count_dropped(len(users)) if self.drop else 0
        self._starts = np.cumsum(counts) - counts
        self._following, self._videos = np.zeros(len(users), np.int64), Distinct()
        written = self.journal.of("piece")
        self._said = (
            written[-1] if written else {"rows": 0, "duplicates": [0] * len(self.log.rows_in), "absent": [0, 0]}
        )
        self._replay(self._said["rows"])
        events = Spool(self.folder / f"events{SPOOL}", [Run.from_json(e["run"]) for e in written if e["run"]])
        writer = ColumnWriter(self.folder / LOG, LOG_SCHEMA, self._said["rows"])
        # What depends on the rows before is counted between two pipelines, each of them a few pieces ahead.
        pieces = ahead(self._piece, range(len(written), len(self._cuts) - 1))
        for laid_out in ahead(_lay_out, map(self._place, pieces)):
            self._write(laid_out, writer, events)
        writer.close()
        said = self._said
        return Merged(
            said["rows"], said["duplicates"], len(users), self._videos.count, *said["absent"], events.finish()
        )

    def _count_users(self) -> tuple[np.ndarray, np.ndarray]:
        """Every user [U] int64, ascending, and how many rows each has [U] int64."""
        runs = self.log.runs
        users, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for run in range(len(runs.runs)):
            more, times = np.unique(runs.column(run, _USER), return_counts=True)
            together, at = np.unique(np.concatenate([users, more]), return_inverse=True)
            counts = np.bincount(at, np.concatenate([counts, times]), minlength=len(together)).astype(np.int64)
            users = together
        return users, counts

    def _count_dropped(self, users: int) -> np.ndarray:
        """[U] int64: which users lose how many rows; a pass over all rows of its own."""
        pieces = ahead(self._piece, range(len(self._cuts) - 1))
        return sum(np.bincount(piece.dropped, minlength=users) for piece in pieces)

    def _replay(self, rows: int) -> None:
        """Counters as they stood after the rows that an earlier process wrote."""
        for start in range(0, rows, _REPLAYED):
            span = (start, min(start + _REPLAYED, rows))
            user, video, seen = (
                read_column(self.folder / LOG, name, np.int64, *span) for name in ("user_id", "video_id", "seen")
            )
            self._following[self._users.positions(user)] = seen + 1  # the last of a user's rows is written last
            self._videos.add(video)

    def _piece(self, number: int) -> _Piece:
        cut = self.log.runs.piece(self._cuts[number], self._cuts[number + 1])
        order = order_of(cut.columns[TIME])
        values = np.empty((len(NUMBERS), len(order)), np.int64)
        for i in range(len(NUMBERS)):
            np.take(cut.columns[i], order, out=values[i])
        rows = Rows(values, cut.columns[FLAGS_COLUMN].astype(np.uint16)[order])
        user = self._users.positions(values[_USER])
        copies = later_copies(rows)
        file = np.repeat(self.log.file, cut.counts)[order[copies]]
        dropped = user[copies]
        if self.drop and len(copies):
            keep = np.ones(len(order), bool)
            keep[copies] = False
            rows, user = Rows(values[:, keep], rows.flags[keep]), user[keep]
        positions = self._user_position[user], self.features[1].positions(rows.values[_VIDEO])
        return _Piece(rows, user, *positions, np.bincount(file, minlength=len(self.log.rows_in)), dropped)

    def _place(self, piece: _Piece) -> tuple[_Piece, np.ndarray, np.ndarray]:
        """A piece, each row's place among the events, and how many of its user's came before, both [n] int64."""
        seen = np.empty(len(piece.user), np.int64)
        count_up(piece.user, self._following, seen)
        self._videos.add(piece.rows.values[_VIDEO])
        return piece, self._starts[piece.user] + seen, seen

    def _write(self, laid_out: _LaidOut, writer: ColumnWriter, events: Spool) -> None:
        said, rows = self._said, laid_out.rows
        writer.append(laid_out.columns)
        writer.flush()
        run = events.add(laid_out.events).to_json() if rows else None
        self._said = self.journal.add(
            "piece",
            rows=said["rows"] + rows,
            duplicates=[a + b for a, b in zip(said["duplicates"], laid_out.duplicates, strict=True)],
            absent=[a + b for a, b in zip(said["absent"], laid_out.absent, strict=True)],
            run=run,
        )
        self.stage.add(rows)


@dataclass(frozen=True)
class _LaidOut:
    """A piece as it is written: the columns of the log; the events, packed, sorted by place."""

    rows: int
    columns: dict[str, np.ndarray]
    events: list[Packed]
    duplicates: list[int]
    absent: list[int]


def _lay_out(placed: tuple[_Piece, np.ndarray, np.ndarray]) -> _LaidOut:
    piece, place, seen = placed
    columns = piece.rows.columns()
    order = order_of(place)
    of_events = [place, *(columns[name] for name in _OF_EVENTS), piece.rows.flags & 0xFF]
    added = (piece.user_position, piece.video_position, place, seen)
    absent = [int(np.count_nonzero(position < 0)) for position in added[:2]]
    return _LaidOut(
        len(place),
        columns | dict(zip(ADDED, added, strict=True)),
        [pack(column[order]) for column in of_events],
        piece.duplicates.tolist(),
        absent,
    )


def later_copies(rows: Rows) -> np.ndarray:
    """The numbers [m] int64, ascending, of rows that equal an earlier one in all columns; `rows` in the order of time.

    Copies share the millisecond, so only rows that share it are looked at.
    """
    time = rows.values[TIME]
    tied = np.zeros(len(time), bool)
    same = time[1:] == time[:-1]
    tied[1:] |= same
    tied[:-1] |= same
    at = np.flatnonzero(tied)
    if not len(at):
        return at
    values, flags = rows.values[:, at], rows.flags[at]
    hashes = row_hashes([*values, flags])
    order = np.lexsort((at, hashes, time[at]))
    before, after = order[:-1], order[1:]
    alike = np.flatnonzero((time[at[after]] == time[at[before]]) & (hashes[after] == hashes[before]))
    # The hash only proposes: what is dropped must be equal, value by value.
    before, after = before[alike], after[alike]
    equal = (values[:, before] == values[:, after]).all(axis=0) & (flags[before] == flags[after])
    return np.sort(at[after[equal]])


def write_events(folder: Path, runs: Runs, journal: Journal, stage: Stage) -> None:
    """The events from runs sorted by place; goes on where the journal ends."""
    total = runs.rows
    borders = np.arange(PIECE, total, PIECE)
    cuts = runs.cuts(0, borders) if runs.runs else np.zeros((1, 0), np.int64)
    done = journal.of("events")
    writer = EventsWriter(folder, total, done[-1]["rows"] if done else 0)

    def laid_out(number: int) -> dict[str, np.ndarray]:
        place, *columns = runs.piece(cuts[number], cuts[number + 1]).columns
        at = place - number * PIECE
        values = {name: np.empty(len(at), np.int64) for name in (*_OF_EVENTS, "action")}
        for name, column in zip(values, columns, strict=True):
            values[name][at] = column
        return values

    for number, values in enumerate(ahead(laid_out, range(len(done), len(cuts) - 1)), len(done)):
        writer.append(values)
        rows = len(values["action"])
        journal.add("events", rows=number * PIECE + rows)
        stage.add(rows)
    writer.close()
