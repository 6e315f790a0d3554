"""What a host tier asks of the memory that holds its records."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor


class RecordMemory(Protocol):
    """Records of rows, all of them in host memory (`Arena`) or some of them on disk (`BufferPool`).

    Attributes:
        records: [frames, width], host memory that never moves.
        array: the same memory as a numpy array, for the kernels.
        row_capacity: the most rows there can be.
    """

    records: Tensor
    array: np.ndarray
    record_bytes: int
    row_capacity: int

    def pin(self, rows: np.ndarray, read: np.ndarray | None = None) -> np.ndarray:
        """Frames [n] int64 in which rows [n] (unique, ≥ 0) lie from now until `unpin`; pins count.

        Where `read` [n] bool is False the record is about to be overwritten whole and is not brought up.

        Raises:
            UserError: what is pinned does not fit together; the size needed is named, nothing was changed.
        """
        ...

    def unpin(self, frames: np.ndarray, changed: bool) -> None:
        """Ends one pin a frame. `changed`: the newest record is in the frame, and no longer the one below."""
        ...

    def unpin_all(self) -> None:
        """Ends every pin, whoever holds it: no batch is in flight any more."""
        ...

    def copy(self, rows: np.ndarray, columns: int | None = None) -> Tensor:
        """[n, columns] copy of the first columns (None: all) of the records of rows [n] (repeats allowed), wherever
        they lie. Changes nothing."""
        ...

    def free(self, rows: np.ndarray) -> None:
        """The records of these rows are void."""
        ...
