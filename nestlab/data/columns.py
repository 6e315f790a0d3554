"""Tables of any length as a folder of raw columns: appended to block by block, then read through memory maps.

A column is a file `<name>.values` of its numbers, little-endian, end to end; one that may be missing has a
`<name>.valid` beside it (a bit a row, the lowest first), a column of lists a `<name>.offsets` (int32, one more than
rows). These are the buffers of an Arrow array, so that opening copies nothing, however long the table is: every column
is one contiguous array. `schema.arrow` names the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

SCHEMA = "schema.arrow"


class ColumnWriter:
    """Appends blocks of rows to the columns of a folder.

    Args:
        rows: how many rows of an earlier process to keep; only for tables without missing values and lists.
    """

    def __init__(self, folder: Path, schema: pa.Schema, rows: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        (folder / SCHEMA).write_bytes(schema.serialize().to_pybytes())
        self._parts = {field.name: _part(folder, field, rows) for field in schema}

    def append(self, columns: Mapping[str, object]) -> None:
        """Values by column: an array [n]; where values may be missing (array [n], valid [n] bool); for lists
        (values, valid [n], lengths [n]).
        """
        for name, part in self._parts.items():
            values = columns[name]
            part.append(*(values if isinstance(values, tuple) else (values,)))

    def flush(self) -> None:
        """Hands everything to the kernel; only for tables without missing values and lists."""
        for part in self._parts.values():
            part.flush()

    def close(self) -> None:
        for part in self._parts.values():
            part.close()


class _Numbers:
    """A column without missing values."""

    def __init__(self, base: Path, dtype: np.dtype, rows: int) -> None:
        self._dtype = dtype
        self._values = _appending(base.with_name(base.name + ".values"), rows * dtype.itemsize)

    def append(self, values: np.ndarray) -> None:
        self._values.write(np.ascontiguousarray(values, self._dtype).data)

    def flush(self) -> None:
        self._values.flush()

    def close(self) -> None:
        self._values.close()


class _Nullable(_Numbers):
    def __init__(self, base: Path, dtype: np.dtype) -> None:
        super().__init__(base, dtype, 0)
        self._valid = _appending(base.with_name(base.name + ".valid"), 0)
        self._rest = np.zeros(0, bool)  # fewer than eight rows: no byte yet

    def append(self, values: np.ndarray, valid: np.ndarray) -> None:
        super().append(values)
        valid = np.concatenate([self._rest, valid])
        whole = len(valid) // 8 * 8
        self._valid.write(np.packbits(valid[:whole], bitorder="little").data)
        self._rest = valid[whole:]

    def close(self) -> None:
        super().close()
        self._valid.write(np.packbits(self._rest, bitorder="little").data)
        self._valid.close()


class _Lists(_Nullable):
    def __init__(self, base: Path, dtype: np.dtype) -> None:
        super().__init__(base, dtype)
        self._offsets = _appending(base.with_name(base.name + ".offsets"), 0)
        self._offsets.write(np.zeros(1, np.int32).data)
        self._end = 0

    def append(self, values: np.ndarray, valid: np.ndarray, lengths: np.ndarray) -> None:
        super().append(values, valid)
        ends = self._end + np.cumsum(lengths, dtype=np.int64)
        self._end = int(ends[-1]) if len(ends) else self._end
        if self._end >= 2**31:
            raise OverflowError("a column of lists with 2^31 values or more")
        self._offsets.write(ends.astype(np.int32).data)

    def close(self) -> None:
        super().close()
        self._offsets.close()


def open_columns(folder: Path) -> pa.Table:
    """The table in a folder, memory-mapped, every column in one chunk.

    Raises:
        OSError, pa.ArrowException: it is not there, or not whole.
    """
    schema = pa.ipc.read_schema(pa.py_buffer((folder / SCHEMA).read_bytes()))
    return pa.Table.from_arrays([_open(folder, field) for field in schema], schema=schema)


def files(folder: Path) -> list[Path]:
    """Every file of the table in a folder, by name."""
    return sorted(folder.iterdir())


def read_column(folder: Path, name: str, dtype: type, start: int, stop: int) -> np.ndarray:
    """Rows start … stop−1 of a column without missing values, read rather than mapped: it does not stay resident."""
    size = np.dtype(dtype).itemsize
    return np.fromfile(folder / f"{name}.values", dtype, count=stop - start, offset=start * size)


def _part(folder: Path, field: pa.Field, rows: int) -> _Numbers:
    base = folder / field.name
    if pa.types.is_list(field.type):
        return _Lists(base, np.dtype(field.type.value_type.to_pandas_dtype()))
    dtype = np.dtype(field.type.to_pandas_dtype())
    return _Nullable(base, dtype) if field.nullable else _Numbers(base, dtype, rows)


def _appending(path: Path, keep: int) -> BinaryIO:
    file = open(path, "r+b" if keep else "wb")  # noqa: SIM115  (its owner closes it)
    file.truncate(keep)
    file.seek(keep)
    return file


def _open(folder: Path, field: pa.Field) -> pa.Array:
    def buffer(kind: str) -> pa.Buffer:
        path = folder / f"{field.name}.{kind}"
        if not path.stat().st_size:  # nothing to map
            return pa.py_buffer(b"")
        return pa.memory_map(str(path)).read_buffer()

    values = buffer("values")
    valid = buffer("valid") if field.nullable else None
    if pa.types.is_list(field.type):
        offsets = buffer("offsets")
        inner = pa.Array.from_buffers(
            field.type.value_type, values.size // field.type.value_type.byte_width, [None, values]
        )
        return pa.Array.from_buffers(field.type, offsets.size // 4 - 1, [valid, offsets], children=[inner])
    return pa.Array.from_buffers(field.type, values.size // field.type.byte_width, [valid, values])
