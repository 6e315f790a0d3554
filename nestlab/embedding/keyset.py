"""The unique keys of one batch for one group of tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KeySet:
    """U unique keys, table-major.

    Attributes:
        ids: [U] int64; `ids[offsets[t]:offsets[t + 1]]` are the unique ids of the group's t-th table, in order of first
            appearance in the batch. Tensors are taken without a copy where they lie in host memory.
        offsets: [T+1] int64.
        counts: [U] int64, how often each key occurs in the batch (its shows); None where nobody asked for it.
        clicks: [U] float64, the sum of the labels of the samples in which it occurs, each occurrence counted; or None.

    Raises:
        ValueError: the offsets do not start at 0, end at U or do not ascend, or counts or clicks are not [U].
            Uniqueness is the caller's promise.
    """

    ids: np.ndarray
    offsets: np.ndarray
    counts: np.ndarray | None = None
    clicks: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", int64_array(self.ids))
        object.__setattr__(self, "offsets", int64_array(self.offsets))
        ends = self.offsets
        if ends.size == 0 or ends[0] != 0 or ends[-1] != self.ids.size or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"KeySet: offsets {ends.tolist()} are not ascending from 0 to {self.ids.size}")
        for name in ("counts", "clicks"):
            values = getattr(self, name)
            if values is not None and values.shape != self.ids.shape:
                raise ValueError(f"KeySet: {name} of shape {list(values.shape)} for {self.ids.size} keys")

    def __len__(self) -> int:
        return self.ids.size

    def tables(self, positions: np.ndarray) -> np.ndarray:
        """[n] int64: the table number of the keys at `positions` [n]."""
        return np.searchsorted(self.offsets, positions, side="right") - 1

    def take(self, positions: np.ndarray) -> KeySet:
        """The keys at `positions` [n], ascending, with their counts and clicks."""
        offsets = np.searchsorted(positions, self.offsets)
        fields = [None if values is None else values[positions] for values in (self.counts, self.clicks)]
        return KeySet(self.ids[positions], offsets, *fields)


def int64_array(values: np.ndarray | Tensor) -> np.ndarray:
    """A contiguous, writable int64 numpy view, the one type that the kernels are compiled for; a copy if need be."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().contiguous().numpy()
    array = np.ascontiguousarray(values)
    if array.dtype != np.int64:
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"ids and offsets must be int64, not {array.dtype}")
        array = array.astype(np.int64)
    return array if array.flags.writeable else array.copy()
