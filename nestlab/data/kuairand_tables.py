"""KuaiRand's feature tables: one row a user or a video, columns of whole numbers, words, dates and lists of tags.

Missing values are written as nothing, as NaN, and as -124: all three become null. Numbers were often written by a
program that had turned them into floats: "720.0" is 720. Words become ids by a hash, so that a word never seen before
is as good as any other; there is no vocabulary. A user or video that no row describes has none of these features.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from nestlab.data.lines import read_lines
from nestlab.data.rejects import BrokenLine, Reject
from nestlab.errors import UserError

_RANGES = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
ONEHOTS = tuple(f"onehot_feat{i}" for i in range(18))
_USER_FLAGS = ("is_lowactive_period", "is_live_streamer", "is_video_author")


@dataclass(frozen=True)
class TableFormat:
    """The columns of one file in their order, by kind: `key`, `number`, `word`, `date` or `words`."""

    what: str
    kinds: dict[str, str]

    @property
    def key(self) -> str:
        return next(iter(self.kinds))

    @property
    def header(self) -> str:
        return ",".join(self.kinds)

    @property
    def schema(self) -> pa.Schema:
        def type_of(kind: str) -> pa.DataType:
            return pa.list_(pa.int64()) if kind == "words" else pa.int64()

        return pa.schema([pa.field(name, type_of(kind), kind != "key") for name, kind in self.kinds.items()])


USER_TABLE = TableFormat(
    "user",
    {"user_id": "key", "user_active_degree": "word"}
    | dict.fromkeys(_USER_FLAGS, "number")
    | {name: kind for base in _RANGES for name, kind in ((base, "number"), (f"{base}_range", "word"))}
    | dict.fromkeys(ONEHOTS, "number"),
)
VIDEO_TABLE = TableFormat(
    "video",
    {"video_id": "key", "author_id": "number", "video_type": "word", "upload_dt": "date", "upload_type": "word"}
    | dict.fromkeys(("visible_status", "video_duration", "server_width", "server_height"), "number")
    | {"music_id": "number", "music_type": "number", "tag": "words"},
)

_MISSING = ("", "nan", "NaN", "-124", "-124.0")
_PATTERNS = {
    "key": r"-?[0-9]{1,18}",
    "number": r"-?[0-9]{1,18}(?:\.0*)?",
    "word": r"[^\n]+",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "words": r"[^,\n]+(?:,[^,\n]+)*",
}
_COMPLAINTS = {
    "key": "not an integer",
    "number": "not a whole number",
    "word": "not a word",
    "date": "not a date",
    "words": "not a list of words",
}
_FEW = 200  # a column with more words than that is not listed in the manifest


def word_id(word: str) -> int:
    """The id of a word: the first 63 bits of its BLAKE2b digest; the same in every run, process and machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") >> 1


@dataclass
class FeatureTable:
    """A feature table as it was read.

    Attributes:
        table: rows in the order of the file, without those set aside.
        rows_in: lines below the header.
        rejects: lines that cannot be read, and later rows of a key that was there before.
        words: word column -> rows by word, for columns of few words.
    """

    table: pa.Table
    rows_in: int = 0
    rejects: list[Reject] = field(default_factory=list)
    words: dict[str, dict[str, int]] = field(default_factory=dict)


def read_table(path: Path | None, form: TableFormat, block_bytes: int) -> FeatureTable:
    """Reads a feature table; `None` stands for a file that is not there, and gives a table without rows.

    Raises:
        UserError: the file cannot be read, its header is another one, or none of its rows is good.
    """
    if path is None:
        return FeatureTable(form.schema.empty_table())
    read = FeatureTable(form.schema.empty_table())
    counts: dict[str, Counter[str]] = {name: Counter() for name, kind in form.kinds.items() if kind[:4] == "word"}
    tables, numbers = [read.table], [[]]
    for first, lines in data_lines(path, form.header, form.what + " feature table", block_bytes):
        read.rows_in += len(lines)
        places = range(first, first + len(lines))
        try:
            table = _convert(lines, form, counts)
        except (_Odd, pa.ArrowInvalid):
            good = _sort_out(lines, first, form, read.rejects)
            lines, places = list(compress(lines, good)), list(compress(places, good))
            try:
                table = _convert(lines, form, counts)
            except (_Odd, pa.ArrowInvalid) as error:
                why = " ".join(str(error).split())
                raise UserError(f"{path}: lines from {first} on cannot be read as CSV ({why})") from error
        tables.append(table)
        numbers.append(places)
    read.table = _first_of_each(pa.concat_tables(tables).combine_chunks(), numbers, read.rejects)
    if read.rows_in and not read.table.num_rows:
        first = read.rejects[0]
        raise UserError(f"{path}: none of its {read.rows_in:,} rows can be read (line {first.line}: {first.reason})")
    read.words = {name: dict(count.most_common()) for name, count in counts.items() if len(count) <= _FEW}
    return read


def data_lines(
    path: Path, header: str, what: str, block_bytes: int, limit: int | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """As `read_lines`, below the header. `limit`: at most so many lines, the header among them.

    Raises:
        UserError: the first line is not `header`.
    """
    blocks = read_lines(path, block_bytes, limit)
    first, lines = next(blocks, (1, [b""]))
    found = lines[0].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if found != header:
        columns = header.count(",") + 1
        raise UserError(
            f"{path}: not a KuaiRand {what}: its first line must be the header of {columns} columns, "
            f"{header[:40]}…, and {_first_difference(found, header)}"
        )
    if len(lines) > 1:
        yield first + 1, lines[1:]
    yield from blocks


def _first_difference(found: str, header: str) -> str:
    """In words: the first column of another header that is not as it should be."""
    pairs = enumerate(zip_longest(found.split(","), header.split(",")), 1)
    number, name, wanted = next((number, name, wanted) for number, (name, wanted) in pairs if name != wanted)
    if name is None:
        return f"its column {number}, '{wanted}', is missing"
    if wanted is None:
        return f"its column {number}, {name[:60]!r}, is one too many"
    return f"its column {number} is {name[:60]!r} instead of '{wanted}'"


class _Odd(Exception):
    """The fast reader does not vouch for this block."""


def check_line(line: bytes, form: TableFormat) -> None:
    """Raises BrokenLine if a line (without its end) is no row of the table."""
    try:
        fields = next(csv.reader([line.decode("utf-8")], strict=True), [])
    except UnicodeDecodeError as error:
        raise BrokenLine("undecodable bytes") from error
    except csv.Error as error:
        raise BrokenLine("bad quoting") from error
    if len(fields) != len(form.kinds):
        raise BrokenLine(f"not {len(form.kinds)} fields")
    for text, (name, kind) in zip(fields, form.kinds.items(), strict=True):
        if text in _MISSING:
            if kind == "key":
                raise BrokenLine("no key", name)
        elif not re.fullmatch(_PATTERNS[kind], text):
            raise BrokenLine(_COMPLAINTS[kind], name)


def _sort_out(lines: Sequence[bytes], first: int, form: TableFormat, rejects: list[Reject]) -> list[bool]:
    """Which lines are good; the others are added to `rejects`."""
    good = []
    for number, line in enumerate(lines, first):
        try:
            check_line(line, form)
            good.append(True)
        except BrokenLine as broken:
            rejects.append(Reject(number, broken.reason, broken.column, line))
            good.append(False)
    return good


def _convert(lines: Sequence[bytes], form: TableFormat, counts: dict[str, Counter[str]]) -> pa.Table:
    """Raises _Odd or pa.ArrowInvalid, and counts nothing, unless every line is good."""
    if not lines:
        return form.schema.empty_table()
    names = list(form.kinds)
    text = b"\n".join(lines) + b"\n"
    read = pcsv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1)
    convert = pcsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    parse = pcsv.ParseOptions(ignore_empty_lines=False)
    raw = pcsv.read_csv(pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=convert)
    if raw.num_rows != len(lines):
        raise _Odd
    columns = {name: _checked(raw.column(name).combine_chunks(), kind) for name, kind in form.kinds.items()}
    arrays = []
    for name, kind in form.kinds.items():
        arrays.append(_VALUES[kind](columns[name]))
        if name in counts:
            counts[name].update(_word_counts(columns[name], kind))
    return pa.Table.from_arrays(arrays, schema=form.schema)


def _checked(column: pa.Array, kind: str) -> pa.Array:
    """The text of a column, missing values as nulls; raises _Odd if a value is not of its kind."""
    column = pc.if_else(pc.is_in(column, pa.array(_MISSING)), None, column)
    if kind == "key" and column.null_count:
        raise _Odd
    if pc.all(pc.match_substring_regex(column, f"^(?:{_PATTERNS[kind]})$")).as_py() is False:
        raise _Odd
    return column


def _numbers(text: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(text, r"\.0*$", "").cast(pa.int64())


def _dates(text: pa.Array) -> pa.Array:
    return pc.replace_substring(text, "-", "").cast(pa.int64())


def _words(text: pa.Array) -> pa.Array:
    encoded = text.dictionary_encode()
    ids = np.array([word_id(word) for word in encoded.dictionary.to_pylist()], np.int64)
    return pa.array(ids, pa.int64()).take(encoded.indices)


def _word_lists(text: pa.Array) -> pa.Array:
    lists = pc.split_pattern(text, ",")
    offsets = pa.array(np.asarray(lists.offsets))
    return pa.ListArray.from_arrays(offsets, _words(lists.values), mask=text.is_null())


def _word_counts(text: pa.Array, kind: str) -> dict[str, int]:
    words = pc.split_pattern(text, ",").flatten() if kind == "words" else text
    counted = pc.value_counts(words.drop_null())
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _first_of_each(table: pa.Table, numbers: list[Sequence[int]], rejects: list[Reject]) -> pa.Table:
    """Drops later rows of a key that was there before."""
    keys = table.column(0).to_numpy()
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    if not again.any():
        return table
    lines = np.concatenate([np.asarray(n, np.int64) for n in numbers])
    for i in np.flatnonzero(again).tolist():
        rejects.append(Reject(int(lines[i]), "repeated key", table.column_names[0], str(keys[i]).encode()))
    return table.filter(pa.array(~again)).combine_chunks()


_VALUES = {"key": _numbers, "number": _numbers, "word": _words, "date": _dates, "words": _word_lists}
