"""Memory of the host tier: address space reserved once, pages committed when first touched.

Because growth only touches new pages, a record never moves: an address that a fetch or a write-back holds stays valid
(hazard 6 of docs/design.md 4.2 cannot arise from growth).
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np
import torch
from torch import Tensor

from nestlab.errors import UserError
from nestlab.host import memory_bytes

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on; the value is Linux's
_SMALLEST = 1 << 20


def reserve(nbytes: int) -> mmap.mmap:
    """Anonymous memory that reads as zeros; a page costs memory once it is written.

    Huge pages are asked for where the system has them: random access over gigabytes is otherwise bound by the TLB.

    Raises:
        OSError: the system refuses that much address space.
    """
    if sys.platform == "linux":
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    else:  # macOS overcommits anonymous memory without a flag
        memory = mmap.mmap(-1, nbytes)
    return memory


def zeros_int64(count: int) -> np.ndarray:
    """[count] int64 zeros over huge pages, for hash tables."""
    return np.frombuffer(reserve(count * 8), dtype=np.int64)


class Arena:
    """Growable records `[capacity, width]` of one dtype that never move.

    Attributes:
        records: [capacity, width] Tensor over the whole reservation; rows never given out read as zeros.
        array: the same memory as a numpy array, for the kernels.
        allocator: [2] int64: rows ever given out, rows now in the free list (the kernels change it).
        free: [≥ allocator[1]] int64: rows to be reused, last one first.
    """

    def __init__(self, width: int, dtype: torch.dtype, limit_bytes: int | None = None) -> None:
        self.record_bytes = width * dtype.itemsize
        memory = _reserve_up_to(memory_bytes() if limit_bytes is None else limit_bytes, self.record_bytes)
        self.capacity = len(memory) // self.record_bytes
        flat = torch.frombuffer(memory, dtype=dtype, count=self.capacity * width)
        self.records: Tensor = flat.view(self.capacity, width)
        self.array: np.ndarray = self.records.numpy()
        self.allocator = np.zeros(2, dtype=np.int64)
        self.free = np.empty(0, dtype=np.int64)

    @property
    def rows(self) -> int:
        """Rows in use."""
        return int(self.allocator[0] - self.allocator[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the records ever given out: what is committed, but for the rounding to pages."""
        return int(self.allocator[0]) * self.record_bytes

    @property
    def available(self) -> int:
        """How many more rows can be given out."""
        return self.capacity - self.rows

    def give_back(self, rows: np.ndarray) -> None:
        """Puts rows [n] into the free list. Their memory stays committed and is overwritten when reused."""
        used = int(self.allocator[1])
        if used + rows.size > self.free.size:
            grown = np.empty(max(2 * self.free.size, used + rows.size, 1024), dtype=np.int64)
            grown[:used] = self.free[:used]
            self.free = grown
        self.free[used : used + rows.size] = rows
        self.allocator[1] += rows.size

    def exhausted(self, needed: int) -> UserError:
        """The error for a request of `needed` rows that do not fit."""
        return UserError(
            f"host memory exhausted: {needed:,} more rows of {self.record_bytes} bytes asked for, {self.rows:,} of at "
            f"most {self.capacity:,} in use; use a machine with more memory, a smaller dim or an admission threshold"
        )


def _reserve_up_to(nbytes: int, record_bytes: int) -> mmap.mmap:
    """The largest of nbytes, nbytes/2, … that the system grants, and at least one record."""
    wanted = max(nbytes, record_bytes)
    while True:
        try:
            return reserve(wanted)
        except (OSError, ValueError, OverflowError) as error:
            if wanted <= max(_SMALLEST, record_bytes):
                raise UserError(f"host memory exhausted: cannot reserve {wanted:,} bytes ({error})") from error
            wanted = max(wanted // 2, record_bytes)
