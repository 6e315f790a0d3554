"""Eviction policies from outside: what they can build on, and what keeps them from doing harm."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nestlab.embedding.device.slot_kernels import Places, Swaps
from nestlab.embedding.device.slot_policies import Policy
from nestlab.errors import UserError


class VictimChooser(Policy):
    """A policy in plain numpy: it says which slots to take, the book-keeping is done here.

    It looks at every slot in every plan (docs/extend.md has figures): made for trying an idea. A policy for large
    caches keeps lists, as those of `slot_policies` do.
    """

    @abstractmethod
    def choose(self, slots: np.ndarray, count: int, plan: int) -> np.ndarray:
        """[count] int64 of `slots` [c ≥ count] int64, ascending: those whose rows leave, no slot twice.

        `slots` holds what may be taken: each has a row, and neither plan `plan` nor the one before used it.
        """

    def filled(self, slots: np.ndarray, plan: int) -> None:
        """Comes last in every plan: the slots [m] int64 that its misses got, in their order."""

    @property
    def row_of(self) -> np.ndarray:
        """[slots] int64: the row in each slot, −1 for none. To be read only."""
        return self._places.row_of

    @property
    def last_used(self) -> np.ndarray:
        """[slots] int32: the newest plan that used each slot. To be read only."""
        return self._places.last_used

    def fill(self, rows: np.ndarray, slots: np.ndarray, misses: np.ndarray, plan: int, swaps: Swaps) -> int:
        places, missing = self._places, rows[misses]
        taken = self._take(missing.size, plan)
        old = places.row_of[taken]
        leaves = old >= 0
        out = int(leaves.sum())
        swaps.in_slots[:] = taken
        swaps.out_rows[:out], swaps.out_slots[:out] = old[leaves], taken[leaves]
        places.slot_of[old[leaves]] = 0
        places.row_of[taken], places.last_used[taken] = missing, plan
        places.slot_of[missing] = taken + 1
        self.filled(taken, plan)
        return out

    def _take(self, count: int, plan: int) -> np.ndarray:
        """[count] int64: slots never used, then void ones, then the chosen."""
        state, places = self._places.state, self._places
        unused = np.arange(state[0], min(state[0] + count, state[1]))
        spared = places.last_used[self._first : state[0]] >= plan - 1
        free = np.flatnonzero(~spared) + self._first
        state[0] += unused.size
        void = free[places.row_of[free] < 0][: count - unused.size]
        wanted = count - unused.size - void.size
        if not wanted:
            return np.concatenate([unused, void])
        chosen = self.choose(free[places.row_of[free] >= 0], wanted, plan)
        return np.concatenate([unused, void, np.asarray(chosen, dtype=np.int64).reshape(-1)])


class Guarded(Policy):
    """A policy from outside, each plan of it checked before anything relies on it.

    The rule of `SlotMap` must hold whatever the policy does: a plan takes no slot that it or the plan before uses, and
    the map says what happened. Costs two copies of the map's slots a plan, 12 bytes each.

    Args:
        policy: over the same places.
        name: as the flag gives it.
    """

    def __init__(self, policy: Policy, name: str, places: Places, first_slot: int) -> None:
        super().__init__(places, first_slot)
        self._policy, self.name = policy, name

    @property
    def nbytes(self) -> int:
        return self._policy.nbytes

    def resize(self, places: Places) -> None:
        super().resize(places)
        self._policy.resize(places)

    def foresee(self, foresight, rows, plan) -> None:
        self._policy.foresee(foresight, rows, plan)

    def forget(self, rows: np.ndarray) -> None:
        self._policy.forget(rows)

    def fill(self, rows: np.ndarray, slots: np.ndarray, misses: np.ndarray, plan: int, swaps: Swaps) -> int:
        """As the policy's.

        Raises:
            UserError: it broke the rule; the map is as it was.
        """
        before = [array.copy() for array in (self._places.row_of, self._places.last_used, self._places.state)]
        cause = None
        try:
            out = self._policy.fill(rows, slots, misses, plan, swaps)
            problem = self._problem(rows[misses], plan, swaps, out, *before[:2])
        except Exception as error:
            cause, problem = error, f"raised {type(error).__name__}: {error}"
        if problem:
            self._put_back(rows[misses], *before)
            raise UserError(f"cache_policy={self.name}: its plan {plan} {problem}; see docs/extend.md") from cause
        return out

    def _problem(
        self, missing: np.ndarray, plan: int, swaps: Swaps, out: int, row_of: np.ndarray, last_used: np.ndarray
    ) -> str:
        """What is wrong with a plan, or nothing; the arrays are those before it."""
        taken, (first, end) = swaps.in_slots, (self._first, self._places.state[1])
        if taken.size and not first <= taken.min() <= taken.max() < end:
            return f"takes a slot outside {first} … {end - 1}"
        if np.unique(taken).size != taken.size:
            return "takes a slot twice"
        if (last_used[taken] >= plan - 1).any():
            return "takes a slot that it or the plan before uses"
        leaving = taken[row_of[taken] >= 0]
        left = swaps.out_slots[:out]
        if not np.array_equal(np.sort(left), np.sort(leaving)) or (swaps.out_rows[:out] != row_of[left]).any():
            return "does not name each row that leaves, with its slot"
        places, expected_rows, expected_uses = self._places, row_of.copy(), last_used.copy()
        expected_rows[taken], expected_uses[taken] = missing, plan
        if not np.array_equal(places.row_of, expected_rows) or not np.array_equal(places.last_used, expected_uses):
            return "leaves a map in which a row or its last use is not what was swapped"
        if (places.slot_of[missing] != taken + 1).any() or places.slot_of[swaps.out_rows[:out]].any():
            return "leaves a map in which a row's slot is not the slot that has the row"
        return ""

    def _put_back(self, missing: np.ndarray, row_of: np.ndarray, last_used: np.ndarray, state: np.ndarray) -> None:
        places, resident = self._places, np.flatnonzero(row_of >= 0)
        places.slot_of[missing] = 0
        places.slot_of[row_of[resident]] = resident + 1
        for array, kept in ((places.row_of, row_of), (places.last_used, last_used), (places.state, state)):
            array[:] = kept
