"""A buffer pool: host memory of a given size over a record file, as databases have it over their pages.

Rows that a batch in flight uses are pinned in a frame each; the others stay there until their frame is wanted, and then
go down to the file if they changed. Which of them go is the clock's choice (second chance: Corbató, "A paging
experiment with the Multics system", 1968).

The order of docs/design.md 4.2, hazards 2 and 6, one level down: a victim is written before its frame is reused, a row
counts as "in the file" only once its write has landed and as "in memory" only once its read has, and a pinned row is
never a victim.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.host import file_kernels
from nestlab.embedding.host import pool_kernels as kernels
from nestlab.embedding.host.arena import reserve, zeros
from nestlab.embedding.host.record_file import RecordFile
from nestlab.errors import UserError


class HostTooSmall(UserError):
    """The rows of the batches in flight do not fit in the host tier together.

    Attributes:
        frames: how many rows have to fit: the union of what is pinned and what was asked for.
        nbytes: the same in bytes.
    """

    def __init__(self, frames: int, capacity: int, record_bytes: int) -> None:
        self.frames, self.nbytes = frames, frames * record_bytes
        super().__init__(
            f"host_capacity too small: the batches in flight use {frames:,} rows of {record_bytes} bytes at once "
            f"({self.nbytes:,} bytes), the host tier has room for {capacity:,}; give a larger host_capacity or use a "
            "smaller batch"
        )


class BufferPool:
    """Records of rows, some in frames of host memory, all others in a file. A `RecordMemory`.

    `pin`, `copy` and `free` wait for each other; `unpin` may come from another thread at any time and does not wait for
    the disk.

    Attributes:
        records: [capacity_frames, width] Tensor, memory that is reserved once and never moves.
        array: the same memory as a numpy array, for the kernels.
        record_bytes: bytes of a record.
        row_capacity: the most rows there can be: what the disk had room for.
        promoted, demoted, dropped: records read up, written down, and let go because the file had them already.
        bytes_read, bytes_written: between memory and file.
    """

    def __init__(self, width: int, dtype: torch.dtype, capacity_frames: int, file: RecordFile) -> None:
        """
        Raises:
            UserError: no frame at all, or more address space than the system grants.
            ValueError: the file's records have another size.
        """
        self.record_bytes = width * dtype.itemsize
        if file.record_bytes != self.record_bytes:
            raise ValueError(f"a file of records of {file.record_bytes} bytes for records of {self.record_bytes}")
        if capacity_frames < 1:
            raise UserError(f"host_capacity too small: not one row of {self.record_bytes} bytes fits; give more")
        self.file, self.row_capacity, self._capacity = file, file.capacity, capacity_frames
        try:
            memory = reserve(capacity_frames * self.record_bytes)
            self._places = zeros(self.row_capacity, np.int32)
            self._owners, self._free = zeros(capacity_frames, np.int64), zeros(capacity_frames, np.int64)
            self._pins, self._flags = zeros(capacity_frames, np.int32), zeros(capacity_frames, np.uint8)
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(
                f"host memory exhausted: cannot reserve {capacity_frames:,} frames of {self.record_bytes} bytes "
                f"({error}); give a smaller host_capacity"
            ) from error
        self.records: Tensor = torch.frombuffer(memory, dtype=dtype, count=capacity_frames * width).view(-1, width)
        self.array: np.ndarray = self.records.numpy()
        self._counts = np.zeros(4, dtype=np.int64)
        self._moving = threading.Lock()  # who holds it alone moves records or changes `_places`
        self._state = threading.Lock()  # pins, flags and counts; never held while the disk works
        self.promoted = self.demoted = self.dropped = self.bytes_read = self.bytes_written = 0
        kernels.warm_up()
        file_kernels.warm_up()

    @property
    def nbytes(self) -> int:
        """Bytes of the frames ever used: what is committed, but for the rounding to pages."""
        return int(self._counts[kernels.EVER]) * self.record_bytes

    def pin(self, rows: np.ndarray, read: np.ndarray | None = None) -> np.ndarray:
        """Frames [n] int64 in which the records of rows [n] int64 (unique, ≥ 0) lie from now until `unpin`.

        Pins count: two batches may pin one row. Where `read` [n] bool is False the record is about to be overwritten
        whole: it is not brought up, whatever lies in the frame, and counts as changed. A row that never had a record
        reads as zeros.

        Raises:
            HostTooSmall: rows and what is pinned do not fit together; nothing changed.
            UserError: the disk has no room for these rows and nothing changed; or it failed, then no row is pinned and
                every record is where it was.
        """
        rows = self._checked(rows)
        read = np.ones(rows.size, dtype=np.bool_) if read is None else np.ascontiguousarray(read, dtype=np.bool_)
        frames, missing = np.empty(rows.size, dtype=np.int64), np.empty(rows.size, dtype=np.int64)
        with self._moving:
            self._require_room(rows)
            with self._state:
                missed = kernels.pin_resident(
                    self._places, self._pins, self._flags, self._counts, rows, read, frames, missing
                )
                missing, chosen = missing[:missed], np.empty(missed, dtype=np.int64)
                kernels.choose(self._owners, self._pins, self._flags, self._free, self._counts, chosen)
            try:
                self._write_down(chosen)
                self._bring_up(rows[missing], chosen, read[missing])
            except BaseException:
                self._undo(np.delete(frames, missing), chosen)
                raise
            with self._state:
                kernels.move_in(
                    self._places,
                    self._owners,
                    self._pins,
                    self._flags,
                    self._counts,
                    rows,
                    read,
                    missing,
                    chosen,
                    frames,
                )
        return frames

    def unpin(self, frames: np.ndarray, changed: bool) -> None:
        """Ends one pin of each of frames [n]. `changed`: the newest record is in the frame, and no longer in the file.

        Raises:
            ValueError: a frame is not pinned; nothing changed.
        """
        frames = _inside(frames, self._capacity, "frame")
        with self._state:
            wrong = kernels.unpin(self._pins, self._flags, self._counts, frames, changed)
        if wrong >= 0:
            raise ValueError(f"frame {wrong} is not pinned")

    def unpin_all(self) -> None:
        """Ends every pin: no batch is in flight any more. What was pinned counts as changed."""
        with self._moving, self._state:
            pinned = np.flatnonzero(self._pins > 0)
            self._flags[pinned] |= kernels.CHANGED
            self._pins[pinned] = 0
            self._counts[kernels.PINNED] = 0

    def copy(self, rows: np.ndarray, columns: int | None = None) -> Tensor:
        """[n, columns] copy of the first columns (None: all) of the records of rows [n], wherever they lie.

        Rows may repeat. Nothing changes: no frame, no mark, no counter.

        Raises:
            UserError: the disk failed.
        """
        rows, width = self._checked(rows), self.records.shape[1]
        copied = torch.empty(rows.size, width if columns is None else columns, dtype=self.records.dtype)
        target = copied.numpy()
        sizes = self.record_bytes, self.array.ctypes.data, target.shape[1] * target.itemsize
        with self._moving:
            if kernels.copy_resident(self._places, rows, *sizes, target.ctypes.data):
                below = np.flatnonzero(self._places[rows] < 0)
                records = np.empty((below.size, width), dtype=target.dtype)
                self.file.read(rows[below], np.arange(below.size), records)
                target[below] = records[:, : target.shape[1]]
        return copied

    def free(self, rows: np.ndarray) -> None:
        """The records of rows [n] are void: their frames are given back, nothing is written down.

        Raises:
            ValueError: a row is pinned; nothing changed.
        """
        rows = self._checked(rows)
        with self._moving, self._state:
            wrong = kernels.drop(self._places, self._owners, self._pins, self._flags, self._free, self._counts, rows)
        if wrong >= 0:
            raise ValueError(f"row {wrong} is pinned and cannot be freed")

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        if rows.size and rows.max() >= self.row_capacity:
            raise UserError(
                f"disk full: row {rows.max():,} of {self.record_bytes} bytes, and '{self.file.folder}' had room for "
                f"{self.row_capacity:,}; free space there, or give another folder with disk="
            )
        return _inside(rows, self.row_capacity, "row")

    def _require_room(self, rows: np.ndarray) -> None:
        """In memory for what is pinned and these rows together, and on disk for these rows, before anything changes."""
        with self._state:
            resident, missing = kernels.demand(self._places, self._pins, rows)
            needed = int(self._counts[kernels.PINNED]) + resident + missing
        if needed > self._capacity:
            raise HostTooSmall(needed, self._capacity, self.record_bytes)
        if rows.size:
            self.file.ensure(int(rows.max()) + 1)

    def _write_down(self, chosen: np.ndarray) -> None:
        """The records of victims land in the file where they are newer; only then their rows count as there."""
        victims = chosen[self._owners[chosen] >= 0]
        changed = victims[(self._flags[victims] & kernels.CHANGED) != 0]
        if changed.size:
            self.file.write(self._owners[changed], changed, self.array)
        with self._state:
            kernels.let_go(self._places, self._owners, self._flags, chosen)
        self.demoted += changed.size
        self.dropped += victims.size - changed.size
        self.bytes_written += changed.size * self.record_bytes

    def _bring_up(self, rows: np.ndarray, frames: np.ndarray, read: np.ndarray) -> None:
        """Reads the records of rows into frames where `read` says so; zeros where there is none yet."""
        places = self._places[rows]
        below, void = read & (places < 0), read & (places == 0)
        self.array[frames[void]] = 0
        if below.any():
            self.file.read(rows[below], frames[below], self.array)
        promoted = int(below.sum())
        self.promoted += promoted
        self.bytes_read += promoted * self.record_bytes

    def _undo(self, pinned: np.ndarray, chosen: np.ndarray) -> None:
        with self._state:
            kernels.unpin(self._pins, self._flags, self._counts, pinned, False)
            kernels.give_back(self._owners, self._flags, self._free, self._counts, chosen)


def _inside(places: np.ndarray, end: int, name: str) -> np.ndarray:
    """Contiguous int64; a place outside would reach foreign memory."""
    places = np.ascontiguousarray(places, dtype=np.int64)
    if places.size and not (places.min() >= 0 and places.max() < end):
        raise ValueError(f"{name} {places.min()} … {places.max()} outside of 0 … {end - 1}")
    return places
