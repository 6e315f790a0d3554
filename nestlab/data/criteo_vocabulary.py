"""Criteo's categories by number, in the order of appearance: counted once, kept beside the prepared rows.

Resident while it is made: 24 bytes a category of one column, and a piece of the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nestlab.data.collate import array_of
from nestlab.data.columns import ColumnWriter
from nestlab.data.criteo_conventions import MISSING, Convention, bins
from nestlab.data.criteo_format import DENSE_NAMES, FEATURES
from nestlab.data.prepare import Prepared, Progress, ahead, describe_files, prepare_folder

SCHEMA_VERSION = 1
FOLDER, FILES = "conventions", "files"
_FILE_SCHEMA = pa.schema([pa.field("file", pa.int16(), nullable=False)])
_PIECE = 1 << 20


def categories(column: pa.Array) -> np.ndarray:
    """[n] int64, missing ones MISSING."""
    return column.cast(pa.int64()).fill_null(MISSING).to_numpy(zero_copy_only=False)


def integers(column: pa.Array) -> np.ndarray:
    """[n] int64, missing ones 0."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def features_of(convention: Convention) -> tuple[str, ...]:
    """The columns that are looked up."""
    return (*DENSE_NAMES, *FEATURES) if convention.dense == "bins" else FEATURES


class Vocabulary:
    """The numbers of the categories of one column: `ids` [V] int64 ascending, `numbers` [V] int64, memory-mapped."""

    def __init__(self, folder: Path, name: str, rare: int) -> None:
        self._ids, self._numbers = (
            np.load(folder / f"{name}_{kind}.npy", mmap_mode="r") for kind in ("ids", "numbers")
        )
        self._rare = rare

    def __call__(self, ids_n: np.ndarray) -> np.ndarray:
        """[n] int64; one that was not counted has the number of the rare ones."""
        if not len(self._ids):  # of few rows all categories may be rare
            return np.full(len(ids_n), self._rare)
        at = np.minimum(np.searchsorted(self._ids, ids_n), len(self._ids) - 1)
        return np.where(self._ids[at] == ids_n, self._numbers[at], self._rare)


def prepare_vocabularies(
    prepared: Prepared, table: pa.Table, train: int, made: Convention, progress: Progress
) -> Prepared:
    """The folder with a vocabulary a column, and the smallest dense value by input file and column in its manifest.

    Args:
        table: all rows; the first `train` are the training split.
    """
    identity = {
        "schema_version": SCHEMA_VERSION,
        "source": prepared.fingerprint,
        "rule": [made.name, made.dense, made.first_id, made.min_count, made.seen],
    }

    def build(folder: Path) -> dict[str, Any]:
        rows = table.slice(0, train) if made.seen == "train" else table
        sizes = {}
        for name in features_of(made):
            progress(f"{made.name}: counting the categories of {name}")
            ids, numbers, sizes[name] = _count(rows, name, made)
            np.save(folder / f"{name}_ids.npy", ids)
            np.save(folder / f"{name}_numbers.npy", numbers)
        return {
            "rows_out": table.num_rows,
            "sizes": sizes,
            "smallest": _smallest(prepared, table, folder / FILES) if made.dense == "log_shift" else [],
            "parts": describe_files(sorted(path for path in folder.rglob("*") if path.is_file()), folder),
        }

    return prepare_folder(made.name, prepared.folder / FOLDER, identity, build)


def _count(rows: pa.Table, name: str, made: Convention) -> tuple[np.ndarray, np.ndarray, int]:
    """Categories that are not rare, ascending; their numbers; and how many numbers there are, that of the rare too."""

    def piece(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = categories(array_of(rows.slice(start, _PIECE), name))
        ids, first, counts = np.unique(bins(ids) if name in DENSE_NAMES else ids, return_index=True, return_counts=True)
        return ids, first + start, counts

    known = tuple(np.zeros(0, np.int64) for _ in range(3))
    for found in ahead(piece, range(0, rows.num_rows, _PIECE)):
        known = _together(known, found)
    ids, first, counts = known
    often = counts >= made.min_count
    ids, first = ids[often], first[often]
    numbers = np.empty(len(ids), np.int64)
    numbers[np.argsort(first, kind="stable")] = np.arange(len(ids)) + (made.first_id or 0)
    return ids, numbers, len(ids) + (made.first_id or 0)


def _together(known: tuple[np.ndarray, ...], found: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """`known` has the earlier rows, so that its first appearances count."""
    ids, at = np.unique(np.concatenate([known[0], found[0]]), return_inverse=True)
    first = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(first, at, np.concatenate([known[1], found[1]]))
    counts = np.bincount(at, np.concatenate([known[2], found[2]]), minlength=len(ids)).astype(np.int64)
    return ids, first, counts


def _smallest(prepared: Prepared, table: pa.Table, files: Path) -> list[list[int]]:
    """By input file, in their order: the smallest value of each dense column, a missing one being 0.

    Which file a row is from, since a shuffled row does not say, is written beside: `file` int16 by row, in `files`.
    """
    said, start = [], 0
    writer = ColumnWriter(files, _FILE_SCHEMA)
    for number, part in enumerate(prepared.manifest["parts"]):
        low = np.full(len(DENSE_NAMES), np.iinfo(np.int32).max)
        for begin in range(start, start + part["rows"], _PIECE):
            rows = table.slice(begin, min(_PIECE, start + part["rows"] - begin))
            low = np.minimum(low, [integers(array_of(rows, name)).min() for name in DENSE_NAMES])
            writer.append({"file": np.full(rows.num_rows, number, np.int16)})
        said.append(low.tolist())
        start += part["rows"]
    writer.close()
    return said
