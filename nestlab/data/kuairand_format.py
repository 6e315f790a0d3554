"""KuaiRand's log: 19 integers a line, comma-separated, under a header; and how it becomes an Arrow table.

Two readers share one meaning, as for Criteo: pyarrow takes whole blocks that hold nothing but integers; the lines of
any other block are sorted by a pattern, and `parse_line` names what is wrong with each that is broken.

Nothing is judged that a later reader could want otherwise: any tab, any duration (0 too), a play time beyond the
duration, a play time of 0 with a like. Only `time_ms` tells the time: `hourmin` runs an hour ahead in a sixth of the
rows and takes `date` with it around midnight, so both are kept as they are and used for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from nestlab.data.planted import hash64
from nestlab.data.rejects import BrokenLine, Reject

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

_REGULAR = b"0123456789-,\n"
_INTEGER = re.compile(rb"-?[0-9]+")
# A line that `_parse_fast` is sure to take: 18 digits always fit int64.
_REGULAR_LINE = re.compile(
    b",".join(b"[01]" if name in FLAGS else rb"-?[0-9]{1,18}" for name in COLUMNS),
)
_PARSE = pcsv.ParseOptions(quote_char=False, double_quote=False, ignore_empty_lines=False)
_CONVERT = pcsv.ConvertOptions(column_types={f.name: f.type for f in SCHEMA}, null_values=[], strings_can_be_null=False)


class _Odd(Exception):
    """The fast reader does not vouch for this block."""


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


def parse_block(lines: Sequence[bytes], first: int = 1) -> tuple[pa.Table, list[Reject]]:
    """Reads lines, no header among them, of which the first has the number `first`: rows in their order, rejects."""
    try:
        return _parse_fast(lines), []
    except (_Odd, pa.ArrowInvalid):
        return _parse_sorted(lines, first)


def row_hashes(table: pa.Table) -> np.ndarray:
    """[n] uint64 over all 19 values: equal for equal rows, and for others with a probability of 2^-64."""
    mixed = np.zeros(table.num_rows, np.uint64)
    for i, name in enumerate(COLUMNS):
        values = table.column(name).to_numpy().astype(np.int64).view(np.uint64)
        mixed = hash64(i, mixed ^ values)
    return mixed


def action_mask(table: pa.Table) -> np.ndarray:
    """[n] uint8: the bits of `ACTIONS`."""
    mask = np.zeros(table.num_rows, np.uint8)
    for name, bit in ACTIONS.items():
        mask |= table.column(name).to_numpy().astype(np.uint8) * np.uint8(bit)
    return mask


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


def _parse_fast(lines: Sequence[bytes]) -> pa.Table:
    """Raises _Odd or pa.ArrowInvalid unless every line is regular."""
    if not lines:
        return SCHEMA.empty_table()
    text = b"\n".join(lines) + b"\n"
    if text.translate(None, _REGULAR):
        raise _Odd
    read = pcsv.ReadOptions(column_names=COLUMNS, use_threads=False, block_size=len(text) + 1)
    table = pcsv.read_csv(pa.BufferReader(text), read_options=read, parse_options=_PARSE, convert_options=_CONVERT)
    flags = np.stack([table.column(name).to_numpy() for name in FLAGS])
    if table.num_rows != len(lines) or flags.min() < 0 or flags.max() > 1:
        raise _Odd
    return table.cast(SCHEMA)


def _parse_sorted(lines: Sequence[bytes], first: int) -> tuple[pa.Table, list[Reject]]:
    regular, odd, rows, rejects = [], [], [], []
    for i, line in enumerate(lines):
        if _REGULAR_LINE.fullmatch(line):
            regular.append(i)
            continue
        try:
            rows.append(parse_line(line))
            odd.append(i)
        except BrokenLine as broken:
            rejects.append(Reject(first + i, broken.reason, broken.column, line))
    columns = zip(*rows, strict=True) if rows else [[] for _ in COLUMNS]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    table = pa.concat_tables([_parse_fast([lines[i] for i in regular]), pa.Table.from_arrays(arrays, schema=SCHEMA)])
    # Rows accepted one by one go back to where they stood among the others.
    return table.take(pa.array(np.argsort(regular + odd))) if rows else table, rejects
