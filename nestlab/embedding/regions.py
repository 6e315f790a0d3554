"""Where the buckets of an index lie: regions of one reserved address space, each growing alone."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator

import numpy as np

from nestlab.embedding.host.arena import reserve_up_to
from nestlab.errors import UserError
from nestlab.host import memory_bytes

_SLOT = 16  # bytes
_PAGE = mmap.PAGESIZE // _SLOT  # slots
_SMALLEST = 8  # slots of a bucket
# Share of a bucket's slots that may be filled: this in the first bucket, half of it in the last. With 0.7, a key costs
# 46 bytes and not 64, but look-ups of known keys took 7 % longer, of unknown ones 14 % (docs/log.md).
_FULLEST = 0.5


class Regions:
    """A region of slots a bucket, a power of two each.

    A bucket that outgrows its region gets a new one of twice the size further on; the pages of the old one go back to
    the system. Address space is not reused: all the regions that a bucket ever had take twice its last one.

    Attributes:
        slots: [2·n] int64 over the whole reservation, see `kernels` for a slot.
        starts, masks: [buckets] int64: a region's first slot, and its slots less one.
    """

    def __init__(self, buckets: int, keys: int) -> None:
        self._memory = reserve_up_to(memory_bytes(), 2 * _SLOT * _SMALLEST * buckets)
        self.slots = np.frombuffer(self._memory, dtype=np.int64, count=len(self._memory) // _SLOT * 2)
        self._shares = _FULLEST * 0.5 ** (np.arange(buckets) / buckets)
        self._end = 0
        empty = np.full(buckets, -1, dtype=np.int64)
        self.starts, self.masks = empty, empty
        self.starts, self.masks = self.plan(np.full(buckets, max(1, -(-keys // buckets))))

    @property
    def capacities(self) -> np.ndarray:
        """[buckets] int64: slots."""
        return self.masks + 1

    def plan(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Starts and masks [buckets] for counts [buckets] keys; the present arrays themselves where all fit.

        The limits of the buckets are spread evenly over a doubling. With one limit for all they would fill up at nearly
        the same time, since a hash spreads keys evenly. The load of the whole stays near a quarter at any time, where
        a `KeyIndex` goes from a quarter to a half and back.

        Raises:
            UserError: the address space is used up.
        """
        capacities = self.capacities
        if (counts <= capacities * self._shares).all():
            return self.starts, self.masks
        needed = np.maximum(np.ceil(counts / self._shares), _SMALLEST)
        wanted = np.maximum(capacities, 1 << np.ceil(np.log2(needed)).astype(np.int64))
        grows = wanted > capacities
        starts = self.starts.copy()
        for bucket in np.flatnonzero(grows).tolist():
            starts[bucket] = self._take(int(wanted[bucket]))
        return starts, np.where(grows, wanted - 1, self.masks)

    def _take(self, slots: int) -> int:
        """The first slot of a new region; a large one starts at a page."""
        align = min(slots, _PAGE)
        start = -(-self._end // align) * align
        if 2 * (start + slots) > self.slots.size:
            raise UserError(
                f"the key index has used up its {len(self._memory):,} bytes of address space; use a machine with more "
                "memory, or an admission threshold"
            )
        self._end = start + slots
        return start

    def move(self, starts: np.ndarray, masks: np.ndarray) -> None:
        """The buckets lie here from now on; memory of the regions that they left is given back."""
        left = np.flatnonzero((starts != self.starts) & (self.capacities >= _PAGE))
        if sys.platform == "linux":
            for bucket in left.tolist():
                self._memory.madvise(
                    mmap.MADV_DONTNEED, int(self.starts[bucket]) * _SLOT, int(self.capacities[bucket]) * _SLOT
                )
        self.starts, self.masks = starts, masks

    def views(self) -> Iterator[np.ndarray]:
        """Each bucket's slots, [2·capacity] int64."""
        for start, capacity in zip(self.starts.tolist(), self.capacities.tolist(), strict=True):
            yield self.slots[2 * start : 2 * (start + capacity)]
