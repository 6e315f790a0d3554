"""`SlotMap`: which row of one group of tables is in which slot, and what has to be swapped for a batch.

The planner of RecSDK (its SwapManager), for any policy. It moves no record: its answer is data.
"""

from __future__ import annotations

import math

import numpy as np

from nestlab import plugins
from nestlab.embedding.device import slot_kernels
from nestlab.embedding.device.look_ahead import Foresight
from nestlab.embedding.device.own_policy import Guarded
from nestlab.embedding.device.slot_kernels import NEVER, Places, Swaps
from nestlab.embedding.device.slot_policies import LFU, LRU, Clock, Oracle, Policy
from nestlab.embedding.device.swap import CacheTooSmall, SwapPlan
from nestlab.embedding.host.arena import zeros
from nestlab.errors import UserError

_POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Clock, LRU, LFU)}
POLICIES = (*_POLICIES, Oracle.name)
_MOST_ROWS = 1 << 31


class SlotMap:
    """Maps rows to slots; one thread at a time.

    The rule that makes prefetching safe holds for every policy: a plan never takes a slot that it or the plan before it
    uses, so that what it swaps out was last changed two batches ago. It does not depend on how far ahead one plans.

    Attributes:
        capacity: slots in force. It never shrinks.
        policy: the name of the policy.
        plans: how many plans were made.
    """

    def __init__(
        self,
        capacity: float,
        policy: str = "clock",
        look_ahead: int = 200,
        first_slot: int = 0,
        row_limit: int = _MOST_ROWS,
    ) -> None:
        """
        Args:
            capacity: a number of slots ≥ 1; or below 1 a share of the rows in use, and then always as many as a plan
                needs.
            policy: clock, lru, lfu, oracle, or one from outside (`nestlab.plugins`).
            look_ahead: of the oracle, in batches.
            first_slot: slots below it belong to the caller and are never given to a row.
            row_limit: rows are below it; costs address space only.

        Raises:
            UserError: a capacity that is neither, or an unknown policy.
        """
        if not capacity > 0 or (capacity >= 1 and capacity != int(capacity)):
            raise UserError(f"slot map: capacity {capacity}; give a whole number ≥ 1, or a share below 1")
        if policy not in POLICIES and not plugins.accepts("cache_policy", policy):
            raise UserError(f"unknown cache_policy '{policy}'; use one of {', '.join(POLICIES)}, or {plugins.FORM}")
        self._share = capacity if capacity < 1 else None
        self.capacity = 0 if capacity < 1 else int(capacity)
        self.policy, self.plans, self.first_slot = policy, 0, first_slot
        self._previous = 0  # slots that the last plan used
        size = first_slot + self.capacity
        self._places = Places(
            zeros(min(row_limit, _MOST_ROWS), np.int32),
            np.full(size, -1, dtype=np.int64),
            np.full(size, NEVER, dtype=np.int32),
            np.array([first_slot, size, first_slot], dtype=np.int64),
        )
        self._highest = -1  # the highest row seen: what is committed of slot_of ends there
        self._policy = self._make(policy, look_ahead)

    def __len__(self) -> int:
        """Rows that are resident."""
        return int((self._places.row_of >= 0).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the map: about 4 a row below the highest one seen, and 12 a slot; lists and counts beside."""
        places = self._places
        return 4 * (self._highest + 1) + places.row_of.nbytes + places.last_used.nbytes + self._policy.nbytes

    def room_needed(self, rows: np.ndarray) -> int:
        """|K(t) ∪ K(t−1)| if `rows` [U] were planned next. Changes nothing."""
        self._check(rows)
        return self._previous + slot_kernels.count_new(rows, self._places, self.plans - 1)

    def require_room(self, rows: np.ndarray) -> None:
        """Raises CacheTooSmall if `rows` could not be planned next. Changes nothing."""
        if self._share is None and self._previous + rows.size > self.capacity:
            needed = self.room_needed(rows)
            if needed > self.capacity:
                raise CacheTooSmall(needed, self.capacity)

    def plan(self, rows: np.ndarray, rows_in_use: int = 0, foresight: Foresight | None = None) -> SwapPlan:
        """Slots for the rows of the next batch, and the swaps that it takes. The map has them from then on.

        Args:
            rows: [U] int64, contiguous, no row twice; −1 for a refused id, which gets no slot.
            rows_in_use: of the group, the batch's own included; what a share is of.
            foresight: of the oracle.

        Raises:
            CacheTooSmall: the batch and the one before need more slots than there are; nothing was changed.
            ValueError: a row beyond row_limit, or the oracle lacks its foresight.
        """
        self._check(rows)
        self.require_room(rows)
        if self._share is not None:
            self._follow(rows, rows_in_use)
        self._policy.foresee(foresight, rows.size, self.plans)
        slots, misses = np.empty(rows.size, dtype=np.int64), np.empty(rows.size, dtype=np.int64)
        missed, refused = slot_kernels.touch(rows, self._places, self.plans, slots, misses)
        misses = misses[:missed]
        swaps = Swaps(*(np.empty(missed, dtype=np.int64) for _ in range(3)))
        out = self._policy.fill(rows, slots, misses, self.plans, swaps)
        slots[misses] = swaps.in_slots
        plan = SwapPlan(self.plans, slots, misses, swaps.in_slots, swaps.out_rows[:out], swaps.out_slots[:out], refused)
        self._previous = rows.size - refused
        self.plans += 1
        return plan

    def forget(self, rows: np.ndarray) -> None:
        """The keys of rows [n] int64 were evicted: their slots are void, and reused without a swap-out.

        A void slot that a batch in flight uses is spared like any other.
        """
        self._check(rows)
        self._policy.forget(rows)

    def slots_of(self, rows: np.ndarray) -> np.ndarray:
        """[n] int64: the slot of each row, −1 for a row that is not resident. Changes nothing."""
        self._check(rows, grows=False)
        slots = np.empty(rows.size, dtype=np.int64)
        slot_kernels.find_slots(rows, self._places, slots)
        return slots

    def rows_in(self) -> tuple[np.ndarray, np.ndarray]:
        """The resident rows [n] int64 and their slots [n], by slot."""
        slots = np.flatnonzero(self._places.row_of >= 0)
        return self._places.row_of[slots], slots

    def _make(self, policy: str, look_ahead: int) -> Policy:
        places, first = self._places, self.first_slot
        if policy == Oracle.name:
            return Oracle(places, first, look_ahead)
        if policy in _POLICIES:
            return _POLICIES[policy](places, first)
        return Guarded(plugins.policy(policy)(places, first), policy, places, first)

    def _check(self, rows: np.ndarray, grows: bool = True) -> None:
        highest = int(rows.max(initial=-1))
        if highest >= self._places.slot_of.size:
            raise ValueError(f"slot map: row {highest} is beyond the limit of {self._places.slot_of.size} rows")
        if grows:
            self._highest = max(self._highest, highest)

    def _follow(self, rows: np.ndarray, rows_in_use: int) -> None:
        """Grows the capacity to its share of the rows in use, or to what the plan needs."""
        wanted = math.ceil(self._share * rows_in_use)
        if self._previous + rows.size > max(self.capacity, wanted):
            wanted = max(wanted, self.room_needed(rows))
        if wanted <= self.capacity:
            return
        self.capacity, size = wanted, self.first_slot + wanted
        self._places.state[1] = size
        if size > self._places.row_of.size:
            self._resize(2 * size)

    def _resize(self, size: int) -> None:
        places = self._places
        row_of, last_used = np.full(size, -1, dtype=np.int64), np.full(size, NEVER, dtype=np.int32)
        row_of[: places.row_of.size] = places.row_of
        last_used[: places.last_used.size] = places.last_used
        self._places = places._replace(row_of=row_of, last_used=last_used)
        self._policy.resize(self._places)
