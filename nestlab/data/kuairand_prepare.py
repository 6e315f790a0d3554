"""Raw KuaiRand files → a prepared folder: the log in the order of time, feature tables, events by user.

The log (`part-00000.parquet`) holds the raw columns and, for each row, the dense positions of its user and video in
the feature tables (−1: no row there), its place among the events, and how many events of its user came before. The
feature tables are joined by position when a batch is made: 32 million videos would not bear a materialised join.

The order is that of `time_ms`, and within a millisecond that of the files: a stable sort. Keys of 8 bytes a row are
sorted in memory; the rows themselves wait on disk.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nestlab.data import histories, rejects
from nestlab.data.histories import EventsWriter, Places
from nestlab.data.identity import FileIdentity, identify
from nestlab.data.kuairand_files import RANDOM, STANDARD, USERS, VIDEOS, Survey
from nestlab.data.kuairand_format import HEADER, SCHEMA, action_mask, parse_block, row_hashes
from nestlab.data.kuairand_tables import USER_TABLE, VIDEO_TABLE, FeatureTable, TableFormat, data_lines, read_table
from nestlab.data.positions import Finder
from nestlab.data.prepare import (
    HOPELESS,
    Prepared,
    PrepareOptions,
    Progress,
    check_unchanged,
    describe_file,
    prepare_folder,
)
from nestlab.data.rejects import Rejects
from nestlab.data.spool import Spool, in_order
from nestlab.errors import UserError

SCHEMA_VERSION = 1  # raise it whenever the same input would be prepared otherwise
ROLES = {"standard": (STANDARD,), "random": (RANDOM,), "both": (STANDARD, RANDOM)}
ADDED = {"user_position": pa.int32(), "video_position": pa.int32(), "place": pa.int64(), "seen": pa.int64()}
LOG_SCHEMA = pa.schema([*SCHEMA, *(pa.field(name, type_, nullable=False) for name, type_ in ADDED.items())])


@dataclass(frozen=True)
class KuaiRandOptions(PrepareOptions):
    """How KuaiRand is prepared.

    Attributes:
        duplicates: `keep` or `drop` the later copies of a row that equals an earlier one in all 19 columns. They are
            counted either way. Kept copies stand in the histories of one another.
        logs: `standard`, `random` (videos shown at random) or `both`.
    """

    duplicates: str = "keep"
    logs: str = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duplicates not in ("keep", "drop"):
            raise UserError(f"duplicates='{self.duplicates}': choose keep or drop")
        if self.logs not in ROLES:
            raise UserError(f"logs='{self.logs}': choose {', '.join(ROLES)}")


def prepare_kuairand(
    name: str, survey: Survey, root: Path, rows: int | None, options: KuaiRandOptions, progress: Progress
) -> Prepared:
    """Prepares the first `rows` rows (None: all) of the log files that `options` wants, under the folder `root`.

    Raises:
        UserError: a file cannot be read or is of another format; or `root` cannot be written.
    """
    logs, tables = survey.paths(*ROLES[options.logs]), survey.paths(USERS, VIDEOS)
    progress(f"{name}: reading the identity of {len(logs) + len(tables)} file(s)")
    log_ids = identify(logs, rows, root / "hashes", header=1)
    table_ids = identify(tables, None, root / "hashes")
    inputs = [*zip(logs, log_ids, strict=False), *zip(tables, table_ids, strict=True)]
    identity = {
        "schema_version": SCHEMA_VERSION,
        "format": "kuairand",
        "inputs": [[path.name, *entry.content] for path, entry in inputs],
        "options": asdict(options),
    }
    build = _Build(name, survey, inputs, rows, options, progress)
    return prepare_folder(name, root, identity, build.run)


@dataclass(frozen=True)
class _Keys:
    """What is kept in memory of n rows: time_ms, hash of the row, user_id, each [n]; and where each file ends."""

    time: np.ndarray
    hashes: np.ndarray
    user: np.ndarray
    ends: np.ndarray


@dataclass
class _Build:
    """One preparation in its temporary folder."""

    name: str
    survey: Survey
    inputs: list[tuple[Path, FileIdentity]]
    rows: int | None
    options: KuaiRandOptions
    progress: Progress
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, folder: Path) -> dict[str, Any]:
        with open(folder / rejects.NAME, "wb") as file:
            of_tables, of_logs = Rejects(file), Rejects(file)
            users = self._table(USERS, USER_TABLE, of_tables)
            videos = self._table(VIDEOS, VIDEO_TABLE, of_tables)
            spool = Spool(folder / "spool.arrow", SCHEMA)
            keys = self._read_logs(spool, of_logs)
        table = spool.finish()
        self.progress(f"{self.name}: sorting {table.num_rows:,} rows")
        order, copies = self._order(table, keys)
        counts = self._write(folder, table, order, keys.user, (users, videos))
        del table
        (folder / "spool.arrow").unlink()
        return {
            "inputs": [{**self.files[path.name], **asdict(identity)} for path, identity in self.inputs],
            "options": {**asdict(self.options), "rows": self.rows},
            **self._account(len(order), copies, of_logs),
            **counts,
            "rejected_in_tables": dict(sorted(of_tables.reasons.items())),
            "words": {"users": users.words, "videos": videos.words},
            "tables": [describe_file(path) for path in sorted([*folder.glob("*.arrow"), *folder.glob("*.npy")])],
            "parts": [describe_file(folder / "part-00000.parquet")],
        }

    def _account(self, rows_out: int, copies: int, aside: Rejects) -> dict[str, Any]:
        """Every row of the log, once."""
        rows_in = sum(entry["rows_in"] for entry in self._log_files())
        dropped = copies if self.options.duplicates == "drop" else 0
        if rows_in != rows_out + dropped + aside.total:
            raise AssertionError(
                f"{self.name}: {rows_in} rows in, {rows_out} out, {dropped} dropped, {aside.reasons} set aside"
            )
        rows = {"rows_in": rows_in, "rows_out": rows_out, "rows_duplicate": copies, "rows_dropped": dropped}
        return {**rows, **aside.facts()}

    def _log_files(self) -> list[dict[str, Any]]:
        return [entry for entry in self.files.values() if entry["role"] in ROLES["both"]]

    def _table(self, role: str, form: TableFormat, aside: Rejects) -> FeatureTable:
        path = next(iter(self.survey.found[role]), None)
        read = read_table(path, form, self.options.block_bytes)
        if path is not None:
            aside.add(path, read.rejects)
            self._note(path, role, read.rows_in, len(read.rejects))
        return read

    def _read_logs(self, spool: Spool, aside: Rejects) -> _Keys:
        kept: dict[str, list[np.ndarray]] = {"time": [], "hashes": [], "user": []}
        rows, ends = 0, []
        logs = {path: role for role in ROLES["both"] for path in self.survey.found[role]}
        for path, identity in self.inputs:
            if path not in logs:
                continue
            before, rows_in = aside.total, 0
            for first, lines in data_lines(path, HEADER, "log", self.options.block_bytes, identity.lines):
                table, broken = parse_block(lines, first)
                aside.add(path, broken)
                rows, rows_in = rows + table.num_rows, rows_in + len(lines)
                if not rows and aside.total >= HOPELESS:
                    raise UserError(f"{path}: none of the first {rows_in:,} rows can be read ({aside.first})")
                spool.add(table)
                kept["time"].append(table.column("time_ms").to_numpy())
                kept["user"].append(table.column("user_id").to_numpy())
                kept["hashes"].append(row_hashes(table))
                self.progress(f"{self.name}: {path.name}, {rows:,} rows read")
            check_unchanged(path, identity)
            ends.append(rows)
            self._note(path, logs[path], rows_in, aside.total - before)
        if not rows:
            why = f" ({aside.first})" if aside.first else ""
            raise UserError(f"{self.inputs[0][0] if self.inputs else self.name}: no rows to prepare{why}")
        return _Keys(*(np.concatenate(kept[name]) for name in ("time", "hashes", "user")), np.array(ends))

    def _note(self, path: Path, role: str, rows_in: int, rejected: int) -> None:
        self.files[path.name] = {"role": role, "rows_in": rows_in, "rows_rejected": rejected, "duplicates": 0}

    def _order(self, table: pa.Table, keys: _Keys) -> tuple[np.ndarray, int]:
        """The row numbers in the order of time, [n] int64; and how many rows are copies of earlier ones."""
        order = np.argsort(keys.time, kind="stable")
        copies = later_copies(table, order, keys.time, keys.hashes)
        logs = self._log_files()
        of_file = np.bincount(np.searchsorted(keys.ends, copies, side="right"), minlength=len(logs))
        for entry, count in zip(logs, of_file.tolist(), strict=True):
            entry["duplicates"] = count
        if self.options.duplicates == "drop":
            keep = np.ones(len(order), bool)
            keep[copies] = False
            order = order[keep[order]]
        return order, len(copies)

    def _write(
        self,
        folder: Path,
        table: pa.Table,
        order: np.ndarray,
        user_n: np.ndarray,
        features: tuple[FeatureTable, FeatureTable],
    ) -> dict[str, Any]:
        """Writes everything that a data set is opened from; what was counted on the way."""
        at = histories.places(user_n[order])
        finders = [Finder(read.table) for read in features]
        for role, read in zip((USERS, VIDEOS), features, strict=True):
            write_arrow(folder / f"{role}.arrow", read.table)
        events = EventsWriter(folder, len(order))
        codec = self.options.compression.upper()
        with pq.ParquetWriter(
            folder / "part-00000.parquet", LOG_SCHEMA, compression=codec, write_page_checksum=True
        ) as writer:
            for start, rows in in_order(table, order):
                here = slice(start, start + rows.num_rows)
                piece = Places(at.place[here], at.seen[here])
                writer.write_table(_with_positions(rows, piece, finders))
                events.put(piece.place, _event_values(rows))
                self.progress(f"{self.name}: {here.stop:,} of {len(order):,} rows written")
        events.close()
        return {
            "users": int((at.seen == 0).sum()),
            "videos": finders[1].distinct,
            "rows_without_user_features": finders[0].absent,
            "rows_without_video_features": finders[1].absent,
        }


def later_copies(table: pa.Table, order: np.ndarray, time: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """The numbers [m] int64 of rows that equal an earlier one in all columns, ascending.

    Copies share the millisecond, so only rows that share it are looked at.
    """
    tied = np.zeros(len(order), bool)
    same = time[order[1:]] == time[order[:-1]]
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    rows = rows[np.lexsort((rows, hashes[rows], time[rows]))]
    alike = np.flatnonzero((time[rows[1:]] == time[rows[:-1]]) & (hashes[rows[1:]] == hashes[rows[:-1]])) + 1
    if not len(alike):
        return np.zeros(0, np.int64)
    # The hash only proposes: what is dropped must be equal, value by value.
    pair = [table.take(pa.array(rows[alike + shift])) for shift in (-1, 0)]
    equal = np.ones(len(alike), bool)
    for name in table.column_names:
        equal &= pair[0].column(name).to_numpy() == pair[1].column(name).to_numpy()
    return np.sort(rows[alike[equal]])


def write_arrow(path: Path, table: pa.Table) -> None:
    """One record batch, so that every column of the memory map is one contiguous array."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _with_positions(rows: pa.Table, piece: Places, finders: list[Finder]) -> pa.Table:
    ids = (rows.column("user_id").to_numpy(), rows.column("video_id").to_numpy())
    added = [finder.positions(column) for finder, column in zip(finders, ids, strict=True)]
    arrays = [*rows.columns, *(pa.array(values) for values in (*added, piece.place, piece.seen))]
    return pa.Table.from_arrays(arrays, schema=LOG_SCHEMA)


def _event_values(rows: pa.Table) -> dict[str, np.ndarray]:
    values = {name: rows.column(name).to_numpy() for name in histories.COLUMNS if name != "action"}
    return {**values, "action": action_mask(rows)}
