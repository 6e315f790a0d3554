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


def zeros(count: int, dtype: type) -> np.ndarray:
    """[count] zeros that cost memory page by page, as they are written."""
    return np.frombuffer(reserve(max(count, 1) * np.dtype(dtype).itemsize), dtype=dtype, count=count)


class Arena:
    """Records `[rows, width]` of one dtype that never move: the memory of a host tier without a disk below it.

    A row's record lies at the row's own place, so that `frame` and `row` are one and nothing is ever to be brought up.

    Attributes:
        records: [row_capacity, width] Tensor over the whole reservation; rows never given out read as zeros.
        array: the same memory as a numpy array, for the kernels.
    """

    def __init__(self, width: int, dtype: torch.dtype, limit_bytes: int | None = None) -> None:
        self.record_bytes = width * dtype.itemsize
        memory = reserve_up_to(memory_bytes() if limit_bytes is None else limit_bytes, self.record_bytes)
        self.row_capacity = len(memory) // self.record_bytes
        flat = torch.frombuffer(memory, dtype=dtype, count=self.row_capacity * width)
        self.records: Tensor = flat.view(self.row_capacity, width)
        self.array: np.ndarray = self.records.numpy()

    def pin(self, rows: np.ndarray, read: np.ndarray | None = None) -> np.ndarray:
        return rows

    def unpin(self, frames: np.ndarray, changed: bool) -> None:
        pass

    def unpin_all(self) -> None:
        pass

    def copy(self, rows: np.ndarray, columns: int | None = None) -> Tensor:
        """[n, columns] copy of the first columns (None: all) of the records of rows [n]."""
        return self.records[:, :columns].index_select(0, torch.from_numpy(rows))

    def free(self, rows: np.ndarray) -> None:
        """Their memory stays committed and is overwritten when they are reused."""


def reserve_up_to(nbytes: int, record_bytes: int) -> mmap.mmap:
    """The largest of nbytes, nbytes/2, … that the system grants, and at least one record."""
    wanted = max(nbytes, record_bytes)
    while True:
        try:
            return reserve(wanted)
        except (OSError, ValueError, OverflowError) as error:
            if wanted <= max(_SMALLEST, record_bytes):
                raise UserError(f"host memory exhausted: cannot reserve {wanted:,} bytes ({error})") from error
            wanted = max(wanted // 2, record_bytes)
