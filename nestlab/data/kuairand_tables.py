"""KuaiRand's feature tables: one row a user or a video, columns of whole numbers, words, dates and lists of tags.

Missing values are written as nothing, as NaN, and as -124: all three become null. Numbers were often written by a
program that had turned them into floats: "720.0" is 720. Words become ids by a hash, so that a word never seen before
is as good as any other; there is no vocabulary. A user or video that no row describes has none of these features.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from nestlab.data.lines import BOM, Block, read_blocks
from nestlab.data.rejects import BrokenLine
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


def word_id(word: str) -> int:
    """The id of a word: the first 63 bits of its BLAKE2b digest; the same in every run, process and machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") >> 1


def data_blocks(
    path: Path,
    header: str,
    what: str,
    block_bytes: int,
    limit: int | None = None,
    begin: tuple[int, int] | None = None,
) -> Iterator[Block]:
    """As `read_blocks`, below the header. `limit`: at most so many lines, the header among them.

    Raises:
        UserError: the first line is not `header`.
    """
    if begin is not None:
        yield from read_blocks(path, block_bytes, limit, begin)
        return
    blocks = read_blocks(path, block_bytes, limit)
    block = next(blocks, Block(1, b"\n", 1, 0))
    line, _, rest = block.text.partition(b"\n")
    found = line.removeprefix(BOM).decode("utf-8", "replace")
    if found != header:
        columns = header.count(",") + 1
        raise UserError(
            f"{path}: not a KuaiRand {what}: its first line must be the header of {columns} columns, "
            f"{header[:40]}…, and {_first_difference(found, header)}"
        )
    if block.lines > 1:
        yield Block(block.first + 1, rest, block.lines - 1, block.end)
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


def parse_row(line: bytes, form: TableFormat) -> list[int | str | list[str] | None]:
    """The values of one line without its end: numbers and dates as integers, words as they are, None where missing.

    Raises:
        BrokenLine: the line is no row of the table.
    """
    try:
        fields = next(csv.reader([line.decode("utf-8")], strict=True), [])
    except UnicodeDecodeError as error:
        raise BrokenLine("undecodable bytes") from error
    except csv.Error as error:
        raise BrokenLine("bad quoting") from error
    if len(fields) != len(form.kinds):
        raise BrokenLine(f"not {len(form.kinds)} fields")
    return [_value(text, name, kind) for text, (name, kind) in zip(fields, form.kinds.items(), strict=True)]


def _value(text: str, name: str, kind: str) -> int | str | list[str] | None:
    if text in _MISSING:
        if kind == "key":
            raise BrokenLine("no key", name)
        return None
    if not re.fullmatch(_PATTERNS[kind], text):
        raise BrokenLine(_COMPLAINTS[kind], name)
    if kind == "word":
        return text
    return text.split(",") if kind == "words" else int(text.replace("-", "") if kind == "date" else text.split(".")[0])
