"""Rows of an Arrow table -> a Batch, feature-major: by compiled kernels where columns are plain numbers.

The kernels read the table's own buffers (memory-mapped, at any offset) and write the Batch's: one copy, and with a
shuffled order no second one. Columns of lists, and numbers of other types, go through Arrow's and numpy's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from nestlab.batch import Batch
from nestlab.data import collate_kernels as kernels

Collate = Callable[[pa.Table], Batch]


def deal(collate: Collate, rows: pa.Table, parts: Sequence[np.ndarray]) -> Iterator[Batch]:
    """A Batch of each part: `collate(rows.take(part))`, where a part is places [B] int64 in `rows`.

    A collate that has a method `deal` does it itself; for any other the rows of all parts are copied, once.
    """
    if own := getattr(collate, "deal", None):
        yield from own(rows, parts)
        return
    taken, start = rows.take(pa.array(np.concatenate(parts))).combine_chunks(), 0
    for part in parts:
        yield collate(taken.slice(start, len(part)))
        start += len(part)


class Collator:
    """A table of rows -> a Batch; `dense` and `features` name the columns, `label` holds 0 or 1."""

    def __init__(self, dense: tuple[str, ...], features: tuple[str, ...], label: str = "label") -> None:
        self.dense, self.features, self.label = dense, features, label
        kernels.warm_up()

    def __call__(self, rows: pa.Table) -> Batch:
        return next(self.deal(rows, [np.arange(rows.num_rows)]))

    def deal(self, rows: pa.Table, parts: Sequence[np.ndarray]) -> Iterator[Batch]:
        """See `deal`. Column by column, so that one column of all rows stays in the cache while it is dealt out."""
        sparse = [_plain(array_of(rows, name), (np.int64,)) for name in self.features]
        dense = [_plain(array_of(rows, name), kernels.DENSE_TYPES) for name in self.dense]
        if None in sparse or None in dense:
            for part in parts:
                yield self._by_arrays(rows.take(pa.array(part)))
            return
        labels = self._labels(rows)
        made = [_Layout.of(len(part), len(dense), len(sparse)) for part in parts]
        # Where an eighth of the rows is wanted, most cache lines are.
        much = 8 * sum(map(len, parts)) >= rows.num_rows
        for f, column in enumerate(sparse):
            column.deal_ids(f, made, parts, much)
        for d, column in enumerate(dense):
            column.deal_dense(d, made, parts, much)
        for layout, part in zip(made, parts, strict=True):
            yield layout.batch(self.features, labels[part])

    def _by_arrays(self, rows: pa.Table) -> Batch:
        ids, lengths = jagged_columns([array_of(rows, name) for name in self.features])
        dense = dense_log1p([array_of(rows, name) for name in self.dense])
        return _batch(dense, self.features, ids, lengths, self._labels(rows))

    def _labels(self, rows: pa.Table) -> np.ndarray:
        return array_of(rows, self.label).to_numpy(zero_copy_only=False).astype(np.float32)


@dataclass(eq=False)
class _Layout:
    """A Batch in the making: memory of its own, which nothing else ever owns."""

    dense_db: np.ndarray  # [D, B] float32
    ids: np.ndarray  # [F·B + 1] int64
    lengths_fb: np.ndarray  # [F, B] int64
    count: int = 0  # ids so far

    @staticmethod
    def of(size: int, dense: int, features: int) -> _Layout:
        lengths = np.empty((features, size), np.int64)
        return _Layout(np.empty((dense, size), np.float32), np.empty(lengths.size + 1, np.int64), lengths)

    def batch(self, features: tuple[str, ...], labels: np.ndarray) -> Batch:
        np.log1p(self.dense_db, out=self.dense_db)
        dense = np.ascontiguousarray(self.dense_db.T)
        return _batch(dense, features, self.ids[: self.count], self.lengths_fb.reshape(-1), labels)


@dataclass(frozen=True, eq=False)
class _Plain:
    """A column of numbers, as the kernels read it."""

    values: np.ndarray
    valid: np.ndarray
    first: int

    def deal_ids(self, feature: int, made: list[_Layout], parts: Sequence[np.ndarray], much: bool) -> None:
        if much:
            kernels.read_through(self.values)
        for layout, part in zip(made, parts, strict=True):
            out, lengths = layout.ids, layout.lengths_fb[feature]
            layout.count = kernels.gather_ids(self.values, self.valid, self.first, part, out, layout.count, lengths)

    def deal_dense(self, column: int, made: list[_Layout], parts: Sequence[np.ndarray], much: bool) -> None:
        if much:
            kernels.read_through(self.values)
        for layout, part in zip(made, parts, strict=True):
            kernels.gather_dense(self.values, self.valid, self.first, part, layout.dense_db[column])


def _plain(column: pa.Array, types: tuple[type, ...]) -> _Plain | None:
    """Views of an array's buffers; None: its values are of none of `types`, or there are none."""
    kinds = {pa.from_numpy_dtype(kind): kind for kind in types}
    if column.type not in kinds or not len(column):
        return None
    valid, values = column.buffers()
    kind = np.dtype(kinds[column.type])
    numbers = np.frombuffer(values, kind, count=len(column), offset=kind.itemsize * column.offset)
    bits = np.frombuffer(valid if column.null_count else b"", np.uint8)
    return _Plain(kernels.read_only(numbers), kernels.read_only(bits), column.offset)


def _batch(
    dense: np.ndarray, features: tuple[str, ...], ids: np.ndarray, lengths: np.ndarray, labels: np.ndarray
) -> Batch:
    return Batch(
        dense=torch.from_numpy(dense),
        features=features,
        ids=torch.from_numpy(ids),
        lengths=torch.from_numpy(lengths),
        labels=torch.from_numpy(labels),
    )


def jagged_columns(columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """One nullable array of B int64 or lists of int64 a feature -> (ids [n] int64, lengths [F·B] int64), feature-major.

    A missing value becomes an empty run, a list a run of its length. Any int64 is an id, zero and negative ones too.
    """
    if not columns or not len(columns[0]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs, lengths = zip(*(_run(column) for column in columns), strict=True)
    return np.concatenate(runs), np.concatenate(lengths)


def _run(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The ids of one feature [n] int64, and how many of them each row has [B] int64."""
    if pa.types.is_list(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        return column.flatten().to_numpy(), lengths
    values = np.frombuffer(column.buffers()[1], np.int64, count=len(column), offset=8 * column.offset)
    if not column.null_count:
        return values, np.ones(len(column), np.int64)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    return values[present], present.astype(np.int64)


def dense_log1p(columns: list[pa.Array]) -> np.ndarray:
    """One nullable integer array of B values a column -> [B, D] float32: log(1 + max(x, 0)), missing 0.

    This is the convention named `dlrm-log1p`.
    """
    dense_db = np.empty((len(columns), len(columns[0]) if columns else 0), np.float32)
    for row, column in zip(dense_db, columns, strict=True):
        row[:] = column.fill_null(0).to_numpy() if column.null_count else column.to_numpy()
    np.maximum(dense_db, 0, out=dense_db)
    np.log1p(dense_db, out=dense_db)
    return np.ascontiguousarray(dense_db.T)


def array_of(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece; without a copy where it is in one piece already."""
    column = rows.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)
