"""The raw Criteo format: 40 tab-separated fields a line, no header, and how it becomes an Arrow table.

label, I1..I13 (decimal integers), C1..C26 (a 32-bit hash, up to 8 hexadecimal digits). An empty field is a missing
value. Copies of the data often lost their trailing tabs; the fields that such a *short* line lacks are missing values
too.

Two readers share one meaning. `_parse_fast` hands a whole block to pyarrow's CSV reader. Where that cannot vouch for
the block, its lines are sorted by a pattern: the regular ones go to `_parse_fast` again, and `parse_line` decides on
each of the others and names what is wrong with it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from nestlab.data.rejects import BrokenLine, Reject

DENSE_NAMES = tuple(f"I{i}" for i in range(1, 14))
FEATURES = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *DENSE_NAMES, *FEATURES)
FIELDS = len(COLUMNS)

SCHEMA = pa.schema(
    [pa.field("label", pa.int8(), nullable=False)]
    + [pa.field(name, pa.int32()) for name in DENSE_NAMES]
    + [pa.field(name, pa.int64()) for name in FEATURES]
)

# Everything that a regular block may hold. Without this check pyarrow would also take " 5", "+5" or "0x5".
_REGULAR = b"0123456789abcdefABCDEF-\t\n"
_INTEGER = re.compile(rb"-?[0-9]+")
_HEX = re.compile(rb"[0-9a-fA-F]{1,8}")
_INT32 = range(-(2**31), 2**31)
# A row of Kaggle's test.txt: 39 fields, with C1, never missing there, where a train row has I13. One hash in 43 is all
# digits and would pass for a number; a count of eight digits in I13 is unheard of.
_UNLABELLED = re.compile(rb"(?:[^\t]*\t){13}[0-9a-fA-F]{8}(?:\t[^\t]*){25}")
# A line that `_parse_fast` is sure to take: nine digits always fit int32.
_REGULAR_LINE = re.compile(rb"[01]" + rb"(?:\t(?:-?[0-9]{1,9})?)" * 13 + rb"(?:\t(?:[0-9a-fA-F]{8})?)" * 26)

_PARSE = pcsv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False)
_CONVERT = pcsv.ConvertOptions(
    column_types={
        "label": pa.int8(),
        **dict.fromkeys(DENSE_NAMES, pa.int32()),
        **dict.fromkeys(FEATURES, pa.binary(8)),  # any other width is refused, and goes to the line reader
    },
    null_values=[""],
    strings_can_be_null=True,
)


class _Odd(Exception):
    """The fast reader does not vouch for this block."""


@dataclass
class Parsed:
    """The lines of one block: the rows accepted, in the order of the lines, and how many of them were short lines."""

    table: pa.Table
    rejects: list[Reject] = field(default_factory=list)
    short: int = 0


def parse_line(line: bytes) -> list[int | None]:
    """The 40 values of one line without its line end.

    Raises:
        BrokenLine: the line holds fewer than 2 or more than 40 fields, no label, or a field that is not what it should
            be.
    """
    if not line:
        raise BrokenLine("empty line")
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenLine("undecodable bytes") from error
    if line.count(b"\t") >= FIELDS:
        raise BrokenLine("more than 40 fields")
    fields = line.split(b"\t")
    if len(fields) < 2:
        raise BrokenLine("fewer than 2 fields")
    if _unlabelled(line):
        raise BrokenLine("39 fields without a label")
    fields += [b""] * (FIELDS - len(fields))
    values: list[int | None] = [_label(fields[0])]
    values += [_integer(text, name) for text, name in zip(fields[1:14], DENSE_NAMES, strict=True)]
    values += [_hex(text, name) for text, name in zip(fields[14:], FEATURES, strict=True)]
    return values


def parse_block(lines: Sequence[bytes], first: int = 1) -> Parsed:
    """Reads lines (without line ends) of which the first has the number `first`."""
    padded = [_pad(line) for line in lines]
    try:
        table = _parse_fast(padded)
    except (_Odd, pa.ArrowInvalid):
        return _parse_sorted(lines, padded, first)
    return Parsed(table, short=sum(map(operator.is_not, lines, padded)))


def parse_text(text: bytes, lines: int, first: int = 1) -> Parsed:
    """As parse_block, of `lines` lines with an LF behind each; faster where all are regular."""
    try:
        return Parsed(_parse_text(text, lines))
    except (_Odd, pa.ArrowInvalid):
        return parse_block(text[:-1].split(b"\n"), first)


def decode_hex8(text_n8: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, 8] uint8 of hexadecimal digits or '-' -> ([n] int64 values, [n] bool: all eight were digits).

    Eight digits are handled as one 64-bit word: each byte becomes its nibble, then neighbours are joined three times.
    """
    word = np.ascontiguousarray(text_n8).view(">u8").reshape(-1).astype(np.uint64)
    u = np.uint64
    ones = u(0x0101010101010101)
    letter = (word >> u(6)) & ones
    valid = (((word >> u(4)) | letter) & ones) == ones  # '-' (0x2d) has neither bit
    word = (word & u(0x0F0F0F0F0F0F0F0F)) + u(9) * letter
    word = (word | (word >> u(4))) & u(0x00FF00FF00FF00FF)
    word = (word | (word >> u(8))) & u(0x0000FFFF0000FFFF)
    word = (word | (word >> u(16))) & u(0x00000000FFFFFFFF)
    return word.astype(np.int64), valid


def _label(text: bytes) -> int:
    if not _INTEGER.fullmatch(text) or int(text) not in (0, 1):
        raise BrokenLine("label not 0 or 1", "label")
    return int(text)


def _integer(text: bytes, name: str) -> int | None:
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise BrokenLine("not an integer", name)
    if len(text) > 64 or int(text) not in _INT32:  # the length guards int() against a line of a million digits
        raise BrokenLine("integer out of range", name)
    return int(text)


def _hex(text: bytes, name: str) -> int | None:
    if not text:
        return None
    if not _HEX.fullmatch(text):
        raise BrokenLine("bad hex", name)
    return int(text, 16)


def _pad(line: bytes) -> bytes:
    tabs = line.count(b"\t")
    if not 0 < tabs < FIELDS - 1 or _unlabelled(line):
        return line  # the fast reader will not take it: it lacks a tab
    return line + b"\t" * (FIELDS - 1 - tabs)


def _unlabelled(line: bytes) -> bool:
    return line.count(b"\t") == FIELDS - 2 and _UNLABELLED.fullmatch(line) is not None


def _parse_sorted(lines: Sequence[bytes], padded: Sequence[bytes], first: int) -> Parsed:
    """As parse_block, for a block that holds odd lines."""
    regular, odd, rows = [], [], []
    parsed = Parsed(SCHEMA.empty_table())
    for i, line in enumerate(padded):
        if _REGULAR_LINE.fullmatch(line):
            regular.append(i)
            continue
        try:
            rows.append(parse_line(lines[i]))
            odd.append(i)
        except BrokenLine as broken:
            parsed.rejects.append(Reject(first + i, broken.reason, broken.column, lines[i]))
    accepted = regular + odd
    table = pa.concat_tables([_parse_fast([padded[i] for i in regular]), _table(rows)])
    # Rows accepted one by one go back to where they stood among the others.
    parsed.table = table.take(pa.array(np.argsort(accepted))) if rows else table
    parsed.short = sum(lines[i] is not padded[i] for i in accepted)
    return parsed


def _table(rows: list[list[int | None]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in COLUMNS]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _parse_fast(padded: Sequence[bytes]) -> pa.Table:
    """Raises _Odd or pa.ArrowInvalid unless every line is regular."""
    return _parse_text(b"\n".join(padded) + b"\n", len(padded)) if padded else SCHEMA.empty_table()


def _parse_text(text: bytes, lines: int) -> pa.Table:
    # A count over the block is enough here: pyarrow checks the count of each line.
    if text.translate(None, _REGULAR) or text.count(b"\t") != lines * (FIELDS - 1):
        raise _Odd
    read = pcsv.ReadOptions(column_names=COLUMNS, use_threads=False, block_size=len(text) + 1)
    raw = pcsv.read_csv(pa.BufferReader(text), read_options=read, parse_options=_PARSE, convert_options=_CONVERT)
    raw = raw.combine_chunks()
    if raw.num_rows != lines:
        raise _Odd
    label = raw.column("label").chunk(0)
    if label.null_count or not np.isin(label.to_numpy(), (0, 1)).all():
        raise _Odd
    arrays = [label, *(raw.column(name).chunk(0) for name in DENSE_NAMES)]
    arrays += [_hex_column(raw.column(name).chunk(0)) for name in FEATURES]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _hex_column(column: pa.FixedSizeBinaryArray) -> pa.Array:
    data = column.buffers()[1]
    text = np.frombuffer(data, np.uint8, count=8 * len(column), offset=8 * column.offset).reshape(-1, 8)
    values, valid = decode_hex8(text)
    missing = ~column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if not (valid if missing is None else valid | missing).all():
        raise _Odd
    return pa.array(values, mask=missing)
