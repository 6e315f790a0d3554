"""Keys on their way to their owners: what one rank tells another in the key exchange, in 8-byte words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
        """One after the other; at least one run."""
        fields = zip(*(run._fields() for run in runs), strict=True)
        return Entries(*(None if values[0] is None else np.concatenate(values) for values in fields))

    def _fields(self) -> tuple[np.ndarray | None, ...]:
        return self.ids, self.masks, self.counts, self.clicks


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
        masks = -(-n * np.dtype(self._mask_type).itemsize // _WORD) if self.parts > 1 else 0
        return n + masks + (2 * n if self.count else 0)

    def pack(self, entries: Entries) -> np.ndarray:
        """[words] int64."""
        n, blocks = entries.ids.size, [entries.ids]
        if entries.masks is not None:
            narrow = entries.masks.astype(self._mask_type)
            padded = np.zeros(-(-narrow.nbytes // _WORD) * _WORD, np.uint8)
            padded[: narrow.nbytes] = narrow.view(np.uint8)
            blocks.append(padded.view(np.int64))
        if entries.counts is not None and entries.clicks is not None:
            blocks += [entries.counts, entries.clicks.view(np.int64)]
        message = np.concatenate(blocks)
        assert message.size == self.words(n)
        return message

    def unpack(self, message: np.ndarray, n: int) -> Entries:
        """The n entries of a message [words] int64; views where they need no widening."""
        masks = counts = clicks = None
        if self.parts > 1:
            words = self.words(n) - n - (2 * n if self.count else 0)
            masks = message[n : n + words].view(self._mask_type)[:n].astype(np.uint64)
        if self.count:
            counts, clicks = message[message.size - 2 * n : message.size - n], message[message.size - n :]
            clicks = clicks.view(np.float64)
        return Entries(message[:n], masks, counts, clicks)
