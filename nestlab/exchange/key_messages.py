"""Keys on their way to their owners: what one rank tells another in the key exchange, in 8-byte words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

_WORD = 8
_MASK_TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, eq=False)
class Entries:
    """n keys with what travels along; a field is None where it does not.

    Attributes:
        ids: [n] int64.
        masks: [n] uint64, bit i: micro-batch i uses the key.
        counts, clicks: [n] int64 and float64, as in `KeySet`.
    """

    ids: np.ndarray
    masks: np.ndarray | None = None
    counts: np.ndarray | None = None
    clicks: np.ndarray | None = None

    def run(self, begin: int, end: int) -> Entries:
        """Entries begin … end−1."""
        return Entries(*(None if values is None else values[begin:end] for values in self._fields()))

    def split(self, sizes: Sequence[int]) -> list[Entries]:
        """Consecutive runs of these sizes."""
        ends = np.cumsum(sizes).tolist()
        return [self.run(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    @staticmethod
    def join(runs: Iterable[Entries]) -> Entries:
        """One after the other; at least one run. Of a single run no copy is made."""
        fields = zip(*(run._fields() for run in runs), strict=True)
        return Entries(*(None if values[0] is None else _joined(values) for values in fields))

    def _fields(self) -> tuple[np.ndarray | None, ...]:
        return self.ids, self.masks, self.counts, self.clicks


def _joined(values: Sequence[np.ndarray]) -> np.ndarray:
    return values[0] if len(values) == 1 else np.concatenate(values)


@dataclass(frozen=True)
class KeyMessage:
    """The form of a message: n ids, then n masks in as few bytes as hold them, then n counts, then n clicks.

    Args:
        parts: micro-batches, at most 64; one needs no masks.
        count: counts and clicks travel.
    """

    parts: int
    count: bool

    @property
    def _mask_type(self) -> type:
        return next(kind for bits, kind in _MASK_TYPES.items() if self.parts <= bits)

    def words(self, n: int) -> int:
        """The length of a message of n entries."""
        return self._mask_end(n) + (2 * n if self.count else 0)

    def _mask_end(self, n: int) -> int:
        return n + (-(-n * np.dtype(self._mask_type).itemsize // _WORD) if self.parts > 1 else 0)

    def fields(self, message: np.ndarray, n: int) -> Entries:
        """Views of a message [words] int64 of n entries, masks in their narrow type: to write to and to read."""
        masks = counts = clicks = None
        if self.parts > 1:
            masks = message[n:].view(self._mask_type)[:n]
        if self.count:
            counts, clicks = message[message.size - 2 * n : message.size - n], message[message.size - n :]
            clicks = clicks.view(np.float64)
        return Entries(message[:n], masks, counts, clicks)

    def pack(self, runs: Sequence[Entries], message: np.ndarray) -> None:
        """Writes the runs, one after the other, to a message of as many words as they need."""
        n = sum(run.ids.size for run in runs)
        into = self.fields(message, n)
        if n and into.masks is not None:
            message[self._mask_end(n) - 1] = 0  # what pads the masks travels too
        for run, place in zip(runs, into.split([run.ids.size for run in runs]), strict=True):
            for values, target in zip(run._fields(), place._fields(), strict=True):
                if target is not None:
                    target[:] = values

    def unpack(self, message: np.ndarray, n: int) -> Entries:
        """The n entries of a message: views, but for the masks."""
        got = self.fields(message, n)
        return got if got.masks is None else replace(got, masks=got.masks.astype(np.uint64))
