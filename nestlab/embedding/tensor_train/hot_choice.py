"""Which rows of a tensor-train table are hot: those used most often, counted in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numba import uint64
from torch import Tensor

from nestlab.embedding.keyset import int64_array
from nestlab.embedding.tensor_train.config import TensorTrain
from nestlab.jit import jit
from nestlab.splitmix import mix

WAYS = 32  # entries a set, as in TT-Rec's cache
_ENTRIES = 4  # rows counted, for each that is held


@dataclass(frozen=True, eq=False)
class Change:
    """One choice: rows [n] that become hot and the slots [n] that they take, after the slots [m] of those that leave
    were emptied; all int64."""

    number: int
    rows: np.ndarray
    slots: np.ndarray
    emptied: np.ndarray


class HotChoice:
    """The planning side of hot rows: it knows which row is in which slot, not what is there.

    Attributes:
        changes: made so far.
    """

    def __init__(self, tensor_train: TensorTrain) -> None:
        count(*_nothing(), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))  # compiled, or loaded, now
        self.capacity, self._every = tensor_train.hot_rows, tensor_train.hot_every
        self._decay = tensor_train.hot_decay
        size = (_sets(self.capacity), WAYS)
        self._rows, self._slots = np.full(size, -1), np.full(size, -1)
        self._counts, self._errors, self._floors = np.zeros(size), np.zeros(size), np.zeros(size[0])
        self._batches, self.changes = 0, 0

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays().values())

    def next_batch(self) -> Change | None:
        """A training batch begins: the choice that is due before it, if one is."""
        due = self._batches > 0 and self._batches % self._every == 0
        self._batches += 1
        return self._choose() if due else None

    def count(self, rows: Tensor) -> Tensor:
        """Counts rows [n] int64 of the batch; [n] int64, the slot of each, or −1.

        In ascending order: what is counted then does not depend on how a batch is cut into ranks' slices.
        """
        used = int64_array(rows)
        order, found = np.argsort(used, kind="stable"), np.empty(used.size, dtype=np.int64)
        count(self._rows, self._counts, self._errors, self._slots, self._floors, used[order], found)
        slots = np.empty_like(found)
        slots[order] = found
        return torch.from_numpy(slots)

    def state_dict(self) -> dict[str, Tensor]:
        arrays = {**self._arrays(), "numbers": np.array([self._batches, self.changes])}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts what `state_dict` gave in place of what is here; the caller has checked the sizes."""
        for name, array in self._arrays().items():
            array[:] = tensors[name].numpy()
        self._batches, self.changes = tensors["numbers"].tolist()

    def _arrays(self) -> dict[str, np.ndarray]:
        kept = {"rows": self._rows, "slots": self._slots, "counts": self._counts, "errors": self._errors}
        return {**kept, "floors": self._floors}

    def _choose(self) -> Change:
        """The K rows that were certainly used most; of equal ones those that are hot, then the smaller row."""
        rows, slots = self._rows.reshape(-1), self._slots.reshape(-1)  # views
        certain = (self._counts - self._errors).reshape(-1)
        order = np.lexsort((rows, slots < 0, -certain))
        best = order[rows[order] >= 0][: self.capacity]
        leaving = np.setdiff1d(np.flatnonzero(slots >= 0), best)
        emptied = slots[leaving]
        slots[leaving] = -1
        entering = best[slots[best] < 0]
        entering = entering[np.argsort(rows[entering])]
        free = np.setdiff1d(np.arange(self.capacity), slots)
        slots[entering] = free[: entering.size]
        self._counts *= self._decay
        self._errors *= self._decay
        self._floors *= self._decay
        self.changes += 1
        return Change(self.changes, rows[entering], slots[entering], emptied)


def _sets(capacity: int) -> int:
    """A power of two, so that _ENTRIES · capacity rows can be counted."""
    return 1 << ((_ENTRIES * capacity - 1) // WAYS).bit_length()


def _nothing() -> tuple[np.ndarray, ...]:
    whole, real = np.zeros((1, WAYS), dtype=np.int64), np.zeros((1, WAYS))
    return whole, real, real.copy(), whole.copy(), np.zeros(1)


@jit
def count(rows, counts, errors, slots, floors, used, found):
    """Counts rows `used` [n] int64 one by one, and writes to found [n] the slot that holds each, or −1.

    Space-saving (Metwally, Agrawal, El Abbadi 2005) within sets of WAYS entries: a row that is not there takes the
    entry of the least count, the first of equal ones, and inherits as its error what any row without an entry may have
    been counted so far: that count, or the set's floor. So its true count since the entries began lies in
    counts − errors … counts. A row that is held keeps its entry, whatever its count: the floor remembers the largest
    count that had to go meanwhile.

    Args:
        rows: [sets, WAYS] int64, −1 where an entry is empty; sets is a power of two.
        counts, errors: [sets, WAYS] float64.
        slots: [sets, WAYS] int64, −1 where a row is not held.
        floors: [sets] float64.
    """
    mask = uint64(rows.shape[0] - 1)
    for i in range(used.size):
        row = used[i]
        at = mix(uint64(row)) & mask
        own, own_counts, own_slots = rows[at], counts[at], slots[at]
        way, least = -1, -1
        for w in range(own.size):
            if own[w] == row:
                way = w
                break
            if own_slots[w] < 0 and (least < 0 or own_counts[w] < own_counts[least]):
                least = w
        found[i] = -1
        if way >= 0:
            own_counts[way] += 1
            found[i] = own_slots[way]
        elif least >= 0:
            if own[least] >= 0:
                floors[at] = max(floors[at], own_counts[least])
            own[least] = row
            errors[at, least] = floors[at]
            own_counts[least] = floors[at] + 1
        else:
            floors[at] += 1  # every entry is held: nobody counts this row
