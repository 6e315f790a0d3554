"""What `bench disk` compares: one set of records, kept in each of several ways below one folder.

Every store is given rows [n] int64 and frames [n] int64 and moves records between itself and `memory[frames]`. Those
that are quicker for it get their rows in ascending order, as ours does by itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sqlite3
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from nestlab.embedding.host.file_kernels import _pread, _pwrite
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.record_file import RecordFile
from nestlab.jit import jit

_CHUNK = 1 << 16  # records put in at once


class Store(Protocol):
    """`path` is a name of its file, or of the open descriptor: by it the page cache is filled and emptied."""

    path: str

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None: ...

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None: ...

    def let_go(self) -> None:
        """Closes what would keep pages in the page cache, until the next call."""
        ...


class Records:
    """`RecordFile` alone."""

    def __init__(self, folder: Path, data: np.ndarray) -> None:
        self.file = RecordFile(folder, data.strides[0])
        self.file.ensure(len(data))
        everything = np.arange(len(data))
        self.file.write(everything, everything, data)
        self.path = f"/dev/fd/{self.file.descriptor}"
        self.read, self.write = self.file.read, self.file.write

    def let_go(self) -> None:
        pass


class Pool:
    """`BufferPool` with one frame a record of a call, so that every call brings all of its rows up, or down.

    A read finds the frames full of unchanged records and lets those go; a write finds them full of changed ones, which
    a pin of other rows, to be overwritten, sends down.
    """

    def __init__(self, file: RecordFile, data: np.ndarray, frames: int) -> None:
        self.pool, self.path = BufferPool(data.shape[1], torch.float32, frames, file), f"/dev/fd/{file.descriptor}"
        for start in range(0, len(data), frames):
            rows = np.arange(start, min(start + frames, len(data)))
            taken = self.pool.pin(rows, np.zeros(rows.size, bool))
            self.pool.array[taken] = data[rows]
            self.pool.unpin(taken, True)

    def fill(self, rows: np.ndarray, changed: bool) -> None:
        """Untimed: all frames hold these rows, changed or not."""
        self.pool.unpin(self.pool.pin(rows), changed)

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        self.pool.unpin(self.pool.pin(rows), False)

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        """Writes down the rows of the last `fill`; `rows`, which are others, come in their place."""
        self.pool.unpin(self.pool.pin(rows, np.zeros(rows.size, bool)), True)

    def let_go(self) -> None:
        pass


@jit
def _raw_read(fd, size, rows, frames, memory):
    for i in range(rows.size):
        if _pread(fd, memory + frames[i] * size, size, rows[i] * size) != size:
            return i
    return -1


@jit
def _raw_write(fd, size, rows, frames, memory):
    for i in range(rows.size):
        if _pwrite(fd, memory + frames[i] * size, size, rows[i] * size) != size:
            return i
    return -1


class Raw:
    """One `pread` or `pwrite` a record, in the order asked for, in a compiled loop."""

    def __init__(self, folder: Path, data: np.ndarray) -> None:
        self.path, self.size = str(folder / "raw"), data.strides[0]
        data.tofile(self.path)
        self.descriptor = os.open(self.path, os.O_RDWR)
        with contextlib.suppress(AttributeError):  # not on macOS: no reading ahead of what is not asked for
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        assert _raw_read(self.descriptor, self.size, rows, frames, memory.ctypes.data) == -1

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        assert _raw_write(self.descriptor, self.size, rows, frames, memory.ctypes.data) == -1

    def let_go(self) -> None:
        pass


class Mapped:
    """The file mapped into memory."""

    def __init__(self, folder: Path, data: np.ndarray) -> None:
        self.path, self.shape, self.map = str(folder / "mapped"), data.shape, None
        data.tofile(self.path)

    def _records(self) -> np.ndarray:
        if self.map is None:
            with open(self.path, "r+b") as file:
                self.map = mmap.mmap(file.fileno(), 0)
            self.map.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(self.map, np.float32).reshape(self.shape)

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        _copy(self._records(), rows[order], memory, frames[order])

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        _copy(memory, frames[order], self._records(), rows[order])

    def let_go(self) -> None:
        self.map = None


@jit
def _copy(source, origins, target, places):
    for i in range(origins.size):
        target[places[i]] = source[origins[i]]


class Sqlite:
    """sqlite3 of the standard library: a table of blobs by row, without journal and without waiting for the disk."""

    def __init__(self, folder: Path, data: np.ndarray) -> None:
        self.path, self.connection = str(folder / "sqlite"), None
        with self._open() as connection:
            connection.execute("create table records (row integer primary key, record blob)")
            for start in range(0, len(data), _CHUNK):
                part = ((row, data[row].tobytes()) for row in range(start, min(start + _CHUNK, len(data))))
                connection.executemany("insert into records values (?, ?)", part)

    def _open(self) -> sqlite3.Connection:
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
            self.connection.execute("pragma journal_mode=off")
            self.connection.execute("pragma synchronous=off")
        return self.connection

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        asked = "[" + ",".join(map(str, rows[order].tolist())) + "]"
        found = self._open().execute("select record from json_each(?) join records on row = value", (asked,))
        content = np.frombuffer(b"".join(record for (record,) in found), np.float32)
        memory[frames[order]] = content.reshape(rows.size, -1)

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        whole, size = memory[frames[order]].tobytes(), memory.strides[0]
        changes = ((whole[i * size : (i + 1) * size], row) for i, row in enumerate(rows[order].tolist()))
        with self._open() as connection:
            connection.executemany("update records set record = ? where row = ?", changes)

    def let_go(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Lmdb:
    """lmdb: a memory-mapped B+ tree that copies each page it changes; without waiting for the disk."""

    def __init__(self, folder: Path, data: np.ndarray) -> None:
        import lmdb  # optional: the extra `bench`

        self.lmdb, self.folder, self.environment = lmdb, folder / "lmdb", None
        self.path, self.size = str(self.folder / "data.mdb"), 4 * data.nbytes + (64 << 20)
        for start in range(0, len(data), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(data)))
            self.write(rows, rows, data)

    def _open(self):
        if self.environment is None:
            self.environment = self.lmdb.open(str(self.folder), map_size=self.size, sync=False, readahead=False)
        return self.environment

    def read(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        with self._open().begin() as transaction, transaction.cursor() as cursor:
            content = b"".join(record for _, record in cursor.getmulti(_keys(rows[order])))
        memory[frames[order]] = np.frombuffer(content, np.float32).reshape(rows.size, -1)

    def write(self, rows: np.ndarray, frames: np.ndarray, memory: np.ndarray) -> None:
        order = np.argsort(rows)
        whole, size = memory[frames[order]].tobytes(), memory.strides[0]
        records = (whole[i * size : (i + 1) * size] for i in range(rows.size))
        with self._open().begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(_keys(rows[order]), records, strict=True))

    def let_go(self) -> None:
        if self.environment is not None:
            self.environment.close()
            self.environment = None


def _keys(rows: np.ndarray) -> list[bytes]:
    """Eight bytes a row that sort as the rows do."""
    whole = rows.astype(">i8").tobytes()
    return [whole[i : i + 8] for i in range(0, len(whole), 8)]
