"""Which slot a missing row gets: the policies of the slot cache.

A policy fills slots that were never used first, in order. Then it takes slots whose row leaves, but none used by this
plan or the one before (`slot_kernels`). All are exact, and depend on the stream of rows alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from nestlab.embedding.device import slot_kernels
from nestlab.embedding.device.look_ahead import Foresight
from nestlab.embedding.device.slot_kernels import VOID, Places, Swaps
from nestlab.embedding.host.arena import zeros

_MOST_USES = 255  # as `slot_kernels.count_uses` counts; 63 or more give the same hit rate on KuaiRand-Pure


class Policy(ABC):
    """Chooses slots for the misses of a plan; `places` is the map that it chooses from and changes."""

    name: str

    def __init__(self, places: Places, first_slot: int) -> None:
        self._places, self._first = places, first_slot

    @property
    def nbytes(self) -> int:
        """Bytes of what the policy keeps beside the map."""
        return 0

    def resize(self, places: Places) -> None:
        """The map has been replaced by a larger one with the same content."""
        self._places = places

    @abstractmethod
    def fill(self, rows: np.ndarray, slots: np.ndarray, misses: np.ndarray, plan: int, swaps: Swaps) -> int:
        """Slots for rows[misses] into `swaps`; slots [U] are those of the hits, already marked as used by this plan.

        Returns:
            how many rows leave.
        """

    def foresee(self, foresight: Foresight | None, rows: int, plan: int) -> None:  # noqa: B027
        """Comes before `fill`: what is known of later batches, for a plan of so many rows."""

    def forget(self, rows: np.ndarray) -> None:
        """The rows are void; their slots are to be reused without a swap-out."""
        slot_kernels.forget(rows, self._places, np.empty((0, 2), dtype=np.int32), 0)


class Clock(Policy):
    """RecSDK's SwapManager: a sweep over the slots that spares those of this plan and of the one before."""

    name = "clock"

    def fill(self, rows, slots, misses, plan, swaps) -> int:
        return slot_kernels.fill_by_clock(rows, misses, self._places, plan, swaps, self._first)


class _Lists(Policy):
    """Slots in lists by class, each ordered by last use; classes are searched in a fixed order. O(1) a touch.

    Attributes:
        lists: number of lists, VOID included.
    """

    lists: int

    def __init__(self, places: Places, first_slot: int) -> None:
        super().__init__(places, first_slot)
        self._links = np.zeros((self.lists + places.row_of.size, 2), dtype=np.int32)
        self._links[: self.lists] = np.arange(self.lists, dtype=np.int32)[:, None]

    @property
    def nbytes(self) -> int:
        return self._links.nbytes

    def resize(self, places: Places) -> None:
        super().resize(places)
        links = np.zeros((self.lists + places.row_of.size, 2), dtype=np.int32)
        links[: len(self._links)] = self._links
        self._links = links

    def fill(self, rows, slots, misses, plan, swaps) -> int:
        classes = self._classes(rows, plan)
        slot_kernels.move(slots, classes, self._links, self.lists)
        order = self._order(plan)
        out = slot_kernels.fill_by_lists(rows, misses, classes, self._places, plan, swaps, self._links, order)
        if out < 0:
            raise AssertionError(f"slot map: the lists of policy {self.name} hold fewer slots than were counted")
        return out

    def forget(self, rows: np.ndarray) -> None:
        slot_kernels.forget(rows, self._places, self._links, self.lists)

    @abstractmethod
    def _classes(self, rows: np.ndarray, plan: int) -> np.ndarray:
        """[U] int32: the list that each row of this plan belongs to from now on."""

    @abstractmethod
    def _order(self, plan: int) -> np.ndarray:
        """Int32: the lists in the order in which they give slots away."""


class LRU(_Lists):
    """The row that was used longest ago leaves; within one plan hits count as used before misses."""

    name = "lru"
    lists = 2

    def _classes(self, rows, plan):
        return np.ones(rows.size, dtype=np.int32)

    def _order(self, plan):
        return np.array([VOID, 1], dtype=np.int32)


class LFU(_Lists):
    """The row that was used by the fewest plans leaves, ties by last use.

    Uses count from the row's first, whether it stayed resident or not: on KuaiRand-Pure in time order that hits more
    than counts which a row loses when it leaves (docs/log.md). A count ends at 255 and starts anew when a key is
    evicted from the table.
    """

    name = "lfu"
    lists = _MOST_USES + 1

    def __init__(self, places: Places, first_slot: int) -> None:
        super().__init__(places, first_slot)
        self._uses = zeros(places.slot_of.size, np.uint8)

    def forget(self, rows: np.ndarray) -> None:
        super().forget(rows)
        self._uses[rows[rows >= 0]] = 0

    def _classes(self, rows, plan):
        classes = np.empty(rows.size, dtype=np.int32)
        slot_kernels.count_uses(rows, self._uses, classes)
        return classes

    def _order(self, plan):
        return np.arange(self.lists, dtype=np.int32)


class Oracle(_Lists):
    """The row that is not used again within the look-ahead leaves, else the one that is used farthest ahead.

    Ties by last use. The idea is Bagpipe's (arXiv 2202.12429): a queue of the keys of later batches, of a length of its
    own, knows the next use of everything in it. List 1 holds what is not used within the look-ahead L, list
    2 + b mod (L + 1) what plan b uses next.
    """

    name = "oracle"

    def __init__(self, places: Places, first_slot: int, look_ahead: int) -> None:
        self._length = look_ahead
        self.lists = look_ahead + 3
        super().__init__(places, first_slot)
        self._distances = np.empty(0, dtype=np.int64)

    def foresee(self, foresight: Foresight | None, rows: int, plan: int) -> None:
        """Rows that a batch new in the queue uses, and no batch before it, move to that batch's list."""
        known = -1 if foresight is None else foresight.distances.size
        if known != rows:
            raise ValueError(
                f"slot map: the oracle has the foresight of {max(known, 0)} keys for a plan of {rows} rows"
            )
        self._distances = foresight.distances
        if foresight.anew:
            self._move(np.flatnonzero(self._places.row_of >= 0), 1)
        for distance, entering in foresight.entering:
            slots = np.empty(entering.size, dtype=np.int64)
            slot_kernels.find_slots(entering, self._places, slots)
            self._move(slots[slots >= 0], self._list_of(plan + distance))

    def _move(self, slots: np.ndarray, number: int) -> None:
        """To a list that is empty or about to be emptied, in the order of last use, as every list is."""
        slots = slots[np.argsort(self._places.last_used[slots], kind="stable")]
        slot_kernels.move(slots, np.full(slots.size, number, dtype=np.int32), self._links, self.lists)

    def _classes(self, rows, plan):
        return np.where(self._distances > 0, self._list_of(plan + self._distances), 1).astype(np.int32)

    def _order(self, plan):
        farthest_first = self._list_of(plan + np.arange(self._length, 0, -1))
        return np.concatenate(([VOID, 1], farthest_first)).astype(np.int32)

    def _list_of(self, plan):
        return 2 + plan % (self._length + 1)
