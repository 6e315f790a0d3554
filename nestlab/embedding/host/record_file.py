"""A scratch file of records of one size: what lies on disk of a table that host memory cannot hold."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

from nestlab.embedding.host.file_kernels import read_records, scratch, write_records
from nestlab.errors import UserError

_STEP = 64 << 20  # bytes by which the file grows at least; above 512 MiB it grows by an eighth
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_ZEROS = bytes(1 << 20)


class RecordFile:
    """Records `[rows, record_bytes]` on disk; a record lies at its row's number.

    It is scratch and no checkpoint: the file has no name from the first moment on, so that the system takes it away
    with the process, however that ends. It is read and written by system calls and never mapped: a disk that fails or
    fills up is an error to be caught, not a signal. Nothing is forced to the disk: the page cache stands in between.

    Attributes:
        record_bytes: bytes of a record.
        rows: how many records have their place on disk now.
        capacity: how many there was room for when the file was made.
        descriptor: the open file.
    """

    def __init__(self, folder: str | Path, record_bytes: int) -> None:
        """Makes the file in `folder`, which is made if it is not there.

        Raises:
            UserError: no file can be made there.
        """
        self.folder, self.record_bytes, self.rows = Path(folder).expanduser(), record_bytes, 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.descriptor = _nameless(self.folder)
        except OSError as error:
            raise UserError(
                f"the disk tier cannot make a file in '{self.folder}': {error.strerror}; give another folder with disk="
            ) from error
        if hasattr(os, "posix_fadvise"):
            # Nothing is read ahead; and reading ahead fills the page cache in large folios, of which ext4 goes through
            # every block at each small write: 5 to 20 times slower (docs/log.md).
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self.capacity = self._free_bytes() // record_bytes

    def close(self) -> None:
        """Gives the disk space back. Done by itself when the object goes."""
        self._close()
        self.descriptor = -1  # the system gives the number to the next file that is opened

    @property
    def nbytes(self) -> int:
        """Bytes of disk that the file holds."""
        return self.rows * self.record_bytes

    def ensure(self, rows: int) -> None:
        """Room on disk for the first `rows` records. What is new reads as zeros.

        Raises:
            UserError: the disk is full; the file is as it was.
        """
        if rows <= self.rows:
            return
        generous = max(rows, self.rows + max(_STEP, self.nbytes // 8) // self.record_bytes)
        for wanted in dict.fromkeys((generous, rows)):
            error = self._grow(wanted)
            if error is None:
                return
        what = "disk full" if error.errno in _FULL else f"the disk tier's file cannot grow ({error.strerror})"
        raise UserError(
            f"{what}: {(rows - self.rows) * self.record_bytes:,} bytes more are needed for {rows:,} records of "
            f"{self.record_bytes} bytes, {self._free_bytes():,} are free in '{self.folder}'; free space there, or give "
            "another folder with disk="
        ) from error

    def read(self, rows: np.ndarray, frames: np.ndarray, array: np.ndarray) -> None:
        """Reads records of rows [n] (any order, repeats allowed) into array[frames] [frames, width].

        Raises:
            ValueError: a row has no place in the file, or a frame none in the array.
            UserError: the disk failed; some frames may be overwritten.
        """
        order = self._check(rows, frames, array)
        where = self.descriptor, self.record_bytes, rows[order], frames[order], array.ctypes.data
        failed = read_records(*where, scratch(self.record_bytes))
        if failed >= 0:
            row = int(rows[order][failed])
            self._fail("read", row, lambda: os.pread(self.descriptor, self.record_bytes, row * self.record_bytes))

    def write(self, rows: np.ndarray, frames: np.ndarray, array: np.ndarray) -> None:
        """Writes array[frames] to the records of rows [n], which are unique. Landed on return: a read sees it.

        Raises:
            ValueError: a row has no place in the file, or a frame none in the array.
            UserError: the disk failed; some of the records may be written.
        """
        order = self._check(rows, frames, array)
        where = self.descriptor, self.record_bytes, rows[order], frames[order], array.ctypes.data
        failed = write_records(*where, scratch(self.record_bytes))
        if failed >= 0:
            row, record = int(rows[order][failed]), array[frames[order][failed]].tobytes()
            self._fail("written", row, lambda: os.pwrite(self.descriptor, record, row * self.record_bytes))

    def _check(self, rows: np.ndarray, frames: np.ndarray, array: np.ndarray) -> np.ndarray:
        """The order in which rows ascend; an address outside file or memory must never reach the system."""
        if array.strides[0] != self.record_bytes or not array.flags.c_contiguous:
            raise ValueError(f"an array of records of {array.strides[0]} bytes, not {self.record_bytes} in one piece")
        for name, places, end in (("row", rows, self.rows), ("frame", frames, array.shape[0])):
            if places.size and not (places.min() >= 0 and places.max() < end):
                raise ValueError(f"{name} {places.min()} … {places.max()} outside of 0 … {end - 1}")
        return np.argsort(rows)

    def _grow(self, rows: int) -> OSError | None:
        """None, or what the system says, after which the file is as it was."""
        try:
            _allocate(self.descriptor, self.nbytes, rows * self.record_bytes - self.nbytes)
        except OSError as error:
            os.ftruncate(self.descriptor, self.nbytes)
            return error
        self.rows = rows
        return None

    def _free_bytes(self) -> int:
        room = os.fstatvfs(self.descriptor)
        return room.f_bavail * room.f_frsize

    def _fail(self, done: str, row: int, again: Callable[[], object]) -> NoReturn:
        """The system's reason is had by trying the record that failed once more."""
        reason = "it stopped in the middle"
        try:
            again()
        except OSError as error:
            reason = error.strerror
        raise UserError(
            f"record {row:,} of the disk tier's file in '{self.folder}' cannot be {done}: {reason}; look after that "
            "disk, or give another folder with disk="
        )


def _nameless(folder: Path) -> int:
    """A new file without a name in `folder`, open for reading and writing."""
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:  # a file system that knows no files without a name
            if error.errno not in (*_UNKNOWN, errno.EISDIR):
                raise
    descriptor, name = tempfile.mkstemp(prefix=".nestlab-", suffix=".records", dir=folder)
    os.unlink(name)
    return descriptor


def _allocate(descriptor: int, start: int, count: int) -> None:
    """Takes the disk space of `count` bytes from `start` on, which read as zeros."""
    try:
        os.posix_fallocate(descriptor, start, count)
    except (AttributeError, OSError) as error:  # macOS has no such call, some file systems refuse it
        if isinstance(error, OSError) and error.errno not in _UNKNOWN:
            raise
        for at in range(start, start + count, len(_ZEROS)):
            _write_whole(descriptor, _ZEROS[: start + count - at], at)


def _write_whole(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
