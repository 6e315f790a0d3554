"""A feature table's file → a folder of columns: streamed, so that 32 million videos need no memory but for their keys.

Resident are a block of text with its rows, the words met so far, and 12 to 20 bytes a row to find it by its key.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nestlab.data import table_kernels as kernels
from nestlab.data.columns import ColumnWriter, open_columns, read_column
from nestlab.data.kuairand_tables import TableFormat, data_blocks, parse_row, word_id
from nestlab.data.lines import Block
from nestlab.data.loader import array_of
from nestlab.data.positions import Finder
from nestlab.data.rejects import BrokenLine, Reject
from nestlab.errors import UserError

_FEW = 200  # a column with more words than that is not listed in the manifest
_SLICE = 1 << 20
_KINDS = {name: code for code, name in enumerate(("key", "number", "word", "date", "words"))}

Aside = Callable[[list[Reject]], None]


@dataclass
class FeatureTable:
    """What was said of a feature table while it was read; its rows lie in `folder`, in the order of the file, without
    those set aside.

    Attributes:
        rows: of them.
        rows_in: lines below the header.
        rejected: lines that cannot be read, and later rows of a key that was there before.
        words: word column -> rows by word, for columns of few words.
    """

    folder: Path
    key: str
    rows: int = 0
    rows_in: int = 0
    rejected: int = 0
    words: dict[str, dict[str, int]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What another process needs to go on from here."""
        return {"rows": self.rows, "rows_in": self.rows_in, "rejected": self.rejected, "words": self.words}

    @staticmethod
    def from_facts(folder: Path, key: str, facts: dict[str, Any]) -> FeatureTable:
        return FeatureTable(folder, key, *(facts[name] for name in ("rows", "rows_in", "rejected", "words")))

    def keys(self) -> np.ndarray:
        """[rows] int64"""
        return read_column(self.folder, self.key, np.int64, 0, self.rows)


def read_table(path: Path | None, form: TableFormat, folder: Path, block_bytes: int, aside: Aside) -> FeatureTable:
    """Reads a feature table into `folder`, which is replaced; `None` stands for a file that is not there: no rows.

    Args:
        aside: takes the lines that are no rows, in their order; then the later rows of keys that were there before.

    Raises:
        UserError: the file cannot be read, its header is another one, or none of its rows is good.
    """
    shutil.rmtree(folder, ignore_errors=True)
    read = FeatureTable(folder, form.key)
    writer, reader = ColumnWriter(folder, form.schema), _Reader(form, Words(len(form.kinds)))
    skipped: list[int] = []
    first_reject: Reject | None = None
    for block in data_blocks(path, form.header, form.what + " feature table", block_bytes) if path else ():
        columns, rejects = reader.read(block)
        read.rows_in += block.lines
        read.rows += block.lines - len(rejects)
        writer.append(columns)
        aside(rejects)
        skipped += [reject.line for reject in rejects]
        first_reject = first_reject or next(iter(rejects), None)
    writer.close()
    read.rejected = len(skipped)
    if read.rows_in and not read.rows and first_reject:
        why = f"line {first_reject.line}: {first_reject.reason}"
        raise UserError(f"{path}: none of its {read.rows_in:,} rows can be read ({why})")
    _drop_repeated(read, form, np.array(skipped, np.int64), aside)
    read.words = reader.words.few(form)
    return read


def warm_up() -> None:
    """Compiles the kernels, or loads them from numba's cache, by a table of one word and one number."""
    form = TableFormat("warming", {"n": "key", "word": "word"})
    _Reader(form, Words(len(form.kinds))).read(Block(1, b"1,a\n", 1, 4))


class Words:
    """Every word met, numbered in the order of meeting, where the kernel can find it.

    Attributes:
        slots: [2^k] int64, open addressing: a word's number + 1, 0: empty. places: [W, 2] int64: where in `pool`
            (uint8) a word starts, and its length. ids: [W] int64, see `word_id`. counts: [F, W] int64.
    """

    def __init__(self, fields: int) -> None:
        self.slots = np.zeros(256, np.int64)
        self.places, self.pool = np.zeros((64, 2), np.int64), np.zeros(1024, np.uint8)
        self.ids, self.counts = np.zeros(64, np.int64), np.zeros((fields, 64), np.int64)
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._used = 0

    def number(self, text: str) -> int:
        """The number of a word, which is new or known."""
        if (known := self._numbers.get(text)) is not None:
            return known
        word, raw = len(self._texts), np.frombuffer(text.encode(), np.uint8)
        self._make_room(word, len(raw))
        self.places[word] = self._used, len(raw)
        self.pool[self._used : self._used + len(raw)] = raw
        self._used += len(raw)
        self.ids[word] = word_id(text)
        self._texts.append(text)
        self._numbers[text] = word
        self._insert(word)
        return word

    def few(self, form: TableFormat) -> dict[str, dict[str, int]]:
        """Word column -> rows by word, the most frequent first, for columns of few words."""
        found = {}
        for column, (name, kind) in enumerate(form.kinds.items()):
            counts = self.counts[column, : len(self._texts)]
            if kind in ("word", "words") and np.count_nonzero(counts) <= _FEW:
                order = [word for word in np.argsort(-counts, kind="stable").tolist() if counts[word]]
                found[name] = {self._texts[word]: int(counts[word]) for word in order}
        return found

    def _make_room(self, word: int, length: int) -> None:
        if word == len(self.ids):
            self.places, self.ids = (np.concatenate([a, np.zeros_like(a)]) for a in (self.places, self.ids))
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)], axis=1)
        if self._used + length > len(self.pool):
            self.pool = np.concatenate([self.pool, np.zeros(len(self.pool) + length, np.uint8)])
        if 2 * word >= len(self.slots):
            self.slots = np.zeros(2 * len(self.slots), np.int64)
            for known in range(word):
                self._insert(known)

    def _insert(self, word: int) -> None:
        start, length = self.places[word].tolist()
        at = int(kernels.word_hash(self.pool, start, start + length)) & (len(self.slots) - 1)
        while self.slots[at]:
            at = (at + 1) & (len(self.slots) - 1)
        self.slots[at] = word + 1


class _Reader:
    """Blocks of lines → columns as `ColumnWriter` takes them. Two readers with one meaning: the kernel takes what is
    plain, `parse_row` decides on every other line.
    """

    def __init__(self, form: TableFormat, words: Words) -> None:
        self._form, self.words = form, words
        self._kinds = np.array([_KINDS[kind] for kind in form.kinds.values()])

    def read(self, block: Block) -> tuple[dict[str, object], list[Reject]]:
        text, fields = np.frombuffer(block.text, np.uint8), len(self._kinds)
        self._state = np.zeros(5, np.int64)
        self._values, self._valid = np.empty((fields, block.lines), np.int64), np.empty((fields, block.lines), bool)
        self._lengths = np.empty(block.lines, np.int64)
        self._listed = np.empty(block.text.count(b",") + block.lines, np.int64)
        rejects: list[Reject] = []
        while (said := self._go_on(text)) != kernels.DONE:
            start, stop = self._state[kernels.START : kernels.STOP + 1].tolist()
            raw = block.text[start:stop]
            if said == kernels.UNKNOWN:
                self.words.number(raw.decode("ascii"))
                continue
            try:
                self._take(parse_row(raw, self._form))
            except BrokenLine as broken:
                line = block.first + int(self._state[kernels.ROW]) + len(rejects)
                rejects.append(Reject(line, broken.reason, broken.column, raw))
            self._state[kernels.AT] = stop + 1
        return self._columns(), rejects

    def _go_on(self, text: np.ndarray) -> int:
        words, room = self.words, np.empty(len(self._kinds), np.int64)
        out = (self._values, self._valid, self._lengths, self._listed)
        known = (words.slots, words.places, words.pool, words.ids)
        return kernels.table_lines(text, self._kinds, self._state, *out, *known, room, words.counts)

    def _take(self, row: list[int | str | list[str] | None]) -> None:
        """A row that the kernel left alone."""
        at = int(self._state[kernels.ROW])
        for f, value in enumerate(row):
            is_number = isinstance(value, int)
            words = [] if is_number or value is None else [self.words.number(w) for w in _listed(value)]
            self._valid[f, at] = value is not None
            self._values[f, at] = value if is_number else 0
            np.add.at(self.words.counts[f], words, 1)
            if isinstance(value, str):
                self._values[f, at] = self.words.ids[words[0]]
            if self._kinds[f] == kernels.WORDS:
                listed = int(self._state[kernels.LISTED])
                self._listed[listed : listed + len(words)] = words
                self._lengths[at] = len(words)
                self._state[kernels.LISTED] += len(words)
        self._state[kernels.ROW] += 1

    def _columns(self) -> dict[str, object]:
        rows, listed = self._state[[kernels.ROW, kernels.LISTED]].tolist()
        columns: dict[str, object] = {}
        for f, (name, kind) in enumerate(self._form.kinds.items()):
            values, valid = self._values[f, :rows], self._valid[f, :rows]
            if kind == "words":
                columns[name] = (self.words.ids[self._listed[:listed]], valid, self._lengths[:rows])
            else:
                columns[name] = values if kind == "key" else (values, valid)
        return columns


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _drop_repeated(read: FeatureTable, form: TableFormat, skipped: np.ndarray, aside: Aside) -> None:
    """Sets later rows of a key that was there before aside; `skipped`: lines that are no rows, ascending."""
    keys = read.keys()
    again = Finder(keys).repeated(keys)
    if not again.any():
        return
    repeated = np.flatnonzero(again)
    # Row r is line r + 2 if nothing before it was skipped; every skipped line with as few rows before it moves it on.
    lines = repeated + 2 + np.searchsorted(skipped - 2 - np.arange(len(skipped)), repeated, side="right")
    for line, row in zip(lines.tolist(), repeated.tolist(), strict=True):
        aside([Reject(line, "repeated key", form.key, str(keys[row]).encode())])
    whole = read.folder.with_name(read.folder.name + ".whole")
    shutil.rmtree(whole, ignore_errors=True)  # of a process that was killed below
    read.folder.rename(whole)
    writer, table = ColumnWriter(read.folder, form.schema), open_columns(whole)
    for start in range(0, read.rows, _SLICE):
        writer.append(_as_columns(table.slice(start, _SLICE).filter(pa.array(~again[start : start + _SLICE])), form))
    writer.close()
    shutil.rmtree(whole)
    read.rows -= len(repeated)
    read.rejected += len(repeated)


def _as_columns(table: pa.Table, form: TableFormat) -> dict[str, object]:
    columns: dict[str, object] = {}
    for name, kind in form.kinds.items():
        column = array_of(table, name)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if kind == "words":
            lengths = np.diff(np.asarray(column.offsets)).astype(np.int64)
            columns[name] = (column.flatten().to_numpy(), valid, np.where(valid, lengths, 0))
        else:
            values = column.fill_null(0).to_numpy()
            columns[name] = values if kind == "key" else (values, valid)
    return columns
