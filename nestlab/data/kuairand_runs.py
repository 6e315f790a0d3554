"""The first pass over KuaiRand's log files: text → rows sorted by time, a block at a time, spooled to disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nestlab.data.identity import FileIdentity
from nestlab.data.journal import Journal
from nestlab.data.kuairand_format import COLUMNS, HEADER, NUMBERS, parse_text
from nestlab.data.kuairand_tables import data_blocks
from nestlab.data.lines import Block
from nestlab.data.prepare import HOPELESS, ahead, check_unchanged
from nestlab.data.rejects import Reject, Rejects
from nestlab.data.spool import Packed, Run, Runs, Spool, order_of, pack
from nestlab.data.stages import Stage
from nestlab.errors import UserError

TIME = NUMBERS.index("time_ms")
FLAGS_COLUMN = len(NUMBERS)  # behind the columns of NUMBERS


def warm_up() -> None:
    """Compiles the kernels, or loads them from numba's cache, by a log of one row."""
    row = b",".join([b"0"] * len(COLUMNS)) + b"\n"
    _sorted(Block(1, row, 1, len(row)))


@dataclass(frozen=True)
class LogRuns:
    """The sorted runs of all log files: columns NUMBERS and then the flags.

    Attributes:
        file: [R] int64: which of the files each run comes from. rows_in, rejected: lines by file, and those set aside.
    """

    runs: Runs
    file: np.ndarray
    rows_in: list[int]
    rejected: list[int]


@dataclass
class LogReader:
    """Reads the log files in their order, and goes on where the journal ends."""

    inputs: list[tuple[Path, FileIdentity]]
    block_bytes: int
    spool: Path
    aside: Rejects
    journal: Journal
    stage: Stage

    def read(self) -> LogRuns:
        """
        Raises:
            UserError: a file cannot be read or is of another format, or there are no rows in any.
        """
        self._entries: list[dict[str, Any]] = self.journal.of("run")
        self._spool = Spool(self.spool, [Run.from_json(entry["run"]) for entry in self._entries if entry["run"]])
        finished = {entry["file"] for entry in self.journal.of("file")}
        for number, (path, identity) in enumerate(self.inputs):
            if number not in finished:
                self._read_file(number, path, identity)
        if not self._spool.runs:
            why = f" ({self.aside.first})" if self.aside.first else ""
            raise UserError(f"{self.inputs[0][0]}: no rows to prepare{why}")
        return self._facts()

    def _read_file(self, number: int, path: Path, identity: FileIdentity) -> None:
        entries = [entry for entry in self._entries if entry["file"] == number]
        begin = tuple(entries[-1]["after"]) if entries else None
        blocks = data_blocks(path, HEADER, "log", self.block_bytes, identity.lines, begin)
        for block, columns, rejects in ahead(_sorted, blocks):
            self.aside.add(path, rejects)
            rows = block.lines - len(rejects)
            run = self._spool.add(columns).to_json() if rows else None
            self._refuse_if_hopeless(path)
            facts = {"lines": block.lines, "rejected": len(rejects), "rejects": self.aside.state()}
            self._entries.append(self.journal.add("run", file=number, after=block.after, run=run, **facts))
            self.stage.add(rows, path.name)
        check_unchanged(path, identity)
        self.journal.add("file", file=number)

    def _refuse_if_hopeless(self, path: Path) -> None:
        if not self._spool.runs and self.aside.total >= HOPELESS:
            raise UserError(f"{path}: none of the first {self.aside.total:,} rows can be read ({self.aside.first})")

    def _facts(self) -> LogRuns:
        def by_file(key: str) -> list[int]:
            of_file = [[entry[key] for entry in self._entries if entry["file"] == i] for i in range(len(self.inputs))]
            return [sum(counts) for counts in of_file]

        file = np.array([entry["file"] for entry in self._entries if entry["run"]])
        return LogRuns(self._spool.finish(), file, by_file("lines"), by_file("rejected"))


def _sorted(block: Block) -> tuple[Block, list[Packed], list[Reject]]:
    rows, rejects = parse_text(block.text, block.lines, block.first)
    order = order_of(rows.values[TIME])
    gather = partial(np.take, indices=order)
    return block, [pack(gather(column)) for column in (*rows.values, rows.flags)], rejects
