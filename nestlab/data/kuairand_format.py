"""KuaiRand's log: 19 integers a line, comma-separated, under a header; and how it becomes an Arrow table.

Two readers share one meaning: a compiled kernel takes every line of whose shape there is no doubt, and `parse_line`
decides on each of the others and names what is wrong with it.

Nothing is judged that a later reader could want otherwise: any tab, any duration (0 too), a play time beyond the
duration, a play time of 0 with a like. Only `time_ms` tells the time: `hourmin` runs an hour ahead in a sixth of the
rows and takes `date` with it around midnight, so both are kept as they are and used for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nestlab.data.planted import hash64
from nestlab.data.rejects import BrokenLine, Reject
from nestlab.data.text_kernels import integer_lines

# The bits of an event's action mask, as Meta's generative-recommenders has them.
ACTIONS = {
    "is_click": 1,
    "is_like": 2,
    "is_follow": 4,
    "is_comment": 8,
    "is_forward": 16,
    "is_hate": 32,
    "long_view": 64,
    "is_profile_enter": 128,
}
HOUR_MS = 3_600_000
BEIJING_HOURS = 8
FLAGS = (*ACTIONS, "is_rand")
COLUMNS = (
    *("user_id", "video_id", "date", "hourmin", "time_ms"),
    *("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view"),
    *("play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter", "is_rand", "tab"),
)
HEADER = ",".join(COLUMNS)
SCHEMA = pa.schema([pa.field(n, pa.int8() if n in FLAGS else pa.int64(), nullable=False) for n in COLUMNS])

NUMBERS = tuple(name for name in COLUMNS if name not in FLAGS)
_FLAG_BITS = np.array([FLAGS.index(name) if name in FLAGS else -1 for name in COLUMNS])
_INTEGER = re.compile(rb"-?[0-9]+")


def parse_line(line: bytes) -> list[int]:
    """The 19 values of one line without its line end.

    Raises:
        BrokenLine: not 19 fields, a field that is no int64, or a flag that is neither 0 nor 1.
    """
    if not line:
        raise BrokenLine("empty line")
    fields = line.split(b",")
    if len(fields) != len(COLUMNS):
        raise BrokenLine("not 19 fields")
    return [_value(text, name) for text, name in zip(fields, COLUMNS, strict=True)]


@dataclass(frozen=True)
class Rows:
    """n rows of the log, packed for speed.

    Attributes:
        values: [10, n] int64: the columns that are no flags, in the order of NUMBERS.
        flags: [n] uint16: bit i is FLAGS[i], so that the low eight are the action mask of `ACTIONS`.
    """

    values: np.ndarray
    flags: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """Every column of SCHEMA, in its type."""
        of_flags = {name: ((self.flags >> i) & 1).astype(np.int8) for i, name in enumerate(FLAGS)}
        return dict(zip(NUMBERS, self.values, strict=True)) | of_flags


def parse_text(text: bytes, lines: int, first: int = 1) -> tuple[Rows, list[Reject]]:
    """Reads `lines` lines, no header among them, each with an LF behind it; the first has the number `first`."""
    values, flags = np.empty((len(NUMBERS), lines), np.int64), np.empty(lines, np.uint16)
    odd = np.empty((lines, 3), np.int64)
    _, odds = integer_lines(np.frombuffer(text, np.uint8), _FLAG_BITS, values, flags, odd)
    rejects, keep = [], np.ones(lines, bool)
    for line, start, end in odd[:odds].tolist():
        raw = text[start:end]
        try:
            row = dict(zip(COLUMNS, parse_line(raw), strict=True))
        except BrokenLine as broken:
            rejects.append(Reject(first + line, broken.reason, broken.column, raw))
            keep[line] = False
            continue
        values[:, line] = [row[name] for name in NUMBERS]
        flags[line] = sum(row[name] << i for i, name in enumerate(FLAGS))
    return (Rows(values[:, keep], flags[keep]) if rejects else Rows(values, flags)), rejects


def parse_block(lines: Sequence[bytes], first: int = 1) -> tuple[pa.Table, list[Reject]]:
    """Reads lines, no header among them, of which the first has the number `first`: rows in their order, rejects."""
    rows, rejects = parse_text(b"".join(line + b"\n" for line in lines), len(lines), first)
    columns = rows.columns()
    return pa.Table.from_arrays([pa.array(columns[name]) for name in COLUMNS], schema=SCHEMA), rejects


def row_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """[n] uint64 over columns [n] of integers: equal for equal rows, and for others with a probability of 2^-64."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for i, values in enumerate(columns):
        mixed = hash64(i, mixed ^ values.astype(np.int64).view(np.uint64))
    return mixed


def beijing_hour(time_ms: np.ndarray) -> np.ndarray:
    """[n] int64 ms since 1970 → [n] int64, 0 … 23."""
    return (time_ms // HOUR_MS + BEIJING_HOURS) % 24


def _value(text: bytes, name: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise BrokenLine("not an integer", name)
    if len(text) > 64 or not -(2**63) <= int(text) < 2**63:  # the length guards int() against a million digits
        raise BrokenLine("integer out of range", name)
    if name in FLAGS and int(text) not in (0, 1):
        raise BrokenLine("flag not 0 or 1", name)
    return int(text)
