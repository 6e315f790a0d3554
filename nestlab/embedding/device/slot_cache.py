"""`SlotCache`: rows stay in slots of the device across batches (RecSDK's multi-level cache).

Slots hold the newest record of the rows in them, the host tier below has every row but may be older. What a batch
swaps is decided by `SlotMap.plan` and carried out here, so that it may happen while the batch before is computed:
victims of t are outside K(t) ∪ K(t−1).

Which call relies on which order (docs/design.md 4.2, hazards in brackets):
* `retrieve(t)` reads host records that `writeback(t−1)` may have written last: out at t−1 and back in at t (2).
* `commit(t)` gathers swap-outs after `apply(t−2)`, which was the last to change them, and before it scatters the
  swap-ins into the same slots (1, 3); and after `commit(t−1)`.
* `gather(t)` and `apply(t)` come after `commit(t)` and `apply(t−1)`.
* a row of an evicted key may still be written back by the plan that chose it before: the host tier keeps the row from
  other keys until the batches in flight are over (4, 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import optimizers_torch
from nestlab.embedding.counters import Counters
from nestlab.embedding.device import gather_kernels
from nestlab.embedding.device.copies import Copies, Copy
from nestlab.embedding.device.look_ahead import LookAhead
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.device.slot_memory import slot_memory
from nestlab.embedding.device.swap import SwapPlan
from nestlab.embedding.device.tier import known_grads, pick
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import GroupResidency
from nestlab.embedding.tiers import Tiers

_FLUSHED_AT_ONCE = 1 << 14  # rows; fewer where host memory has fewer frames
_KERNEL_THREADS = 2  # with more threads of torch its `index_select`, which is parallel, is taken


@dataclass(eq=False)
class _Swap:
    """One batch on its way through the cache.

    Attributes:
        plan: what is swapped.
        slots: [U] int64 on the device: the slot of each key, its table's default slot for a refused one.
        known: [R] int64 numpy: the slots of the keys with a row.
        coming: records of the misses [m, width].
        leaving: records of the victims [v, width].
        frames: [v] of the victims in host memory, pinned until they are written.
        committed: the swap is done: victims are gathered, misses are in their slots.
    """

    plan: SwapPlan
    slots: Tensor
    known: np.ndarray
    coming: Copy | None = None
    leaving: Copy | None = None
    frames: np.ndarray | None = None
    committed: bool = False


class SlotCache:
    """The device-tier protocol over slots.

    With admission, the first slots hold the constant default row of each table of the group: a refused id reads it as
    any other row is read, and nothing ever writes it.

    Attributes:
        map: rows and slots.
        slots: [first + capacity or more, width] records.
    """

    name = "slot_cache"

    def __init__(self, host: HostTier, optimizer: RowOptimizer, options: Tiers, counters: Counters) -> None:
        self._host, self._optimizer, self._counters = host, optimizer, counters
        self._device = torch.device(options.device)
        defaults = options.features.defaults(host.group.tables) if host.admission else np.empty(0)
        limit = defaults.size + (int(options.cache_slots) if options.cache_slots >= 1 else host.rows.capacity)
        self.slots = slot_memory(limit, host.memory.records, options.cache_slots < 1, self._device)
        self.map = SlotMap(
            options.cache_slots, options.cache_policy, options.look_ahead, defaults.size, host.rows.capacity
        )
        self._weights = self.slots[:, : host.group.dim]
        self._weights[: defaults.size] = torch.from_numpy(defaults).to(self.slots)[:, None]
        self._copies = Copies(self._device, options.link)
        self._ahead = LookAhead(options.look_ahead, strict=False) if options.looks_ahead else None
        self._record_bytes = host.memory.record_bytes

    @property
    def nbytes(self) -> int:
        return (self.map.first_slot + self.map.capacity) * self._record_bytes + self.map.nbytes

    def require_room(self, residency: GroupResidency) -> None:
        self.map.require_room(residency.rows)

    def plan(self, residency: GroupResidency) -> None:
        self.map.require_room(residency.rows)
        foresight = self._ahead.advance(residency.keys, self._host.find) if self._ahead else None
        plan = self.map.plan(residency.rows, residency.in_use, foresight)
        slots = plan.slots
        if residency.rowless.size:
            slots = slots.copy()
            slots[residency.rowless] = residency.keys.tables(residency.rowless)
        residency.work = _Swap(plan, torch.from_numpy(slots), plan.slots[residency.with_row])
        self._counters.hits += plan.hits
        self._counters.misses += plan.misses

    def retrieve(self, residency: GroupResidency) -> None:
        swap, memory = residency.work, self._host.memory
        misses = swap.plan.in_at
        frames = self._host.pin(residency, misses, swap.plan.out_rows)
        read, swap.frames = frames[: misses.size], frames[misses.size :]
        swap.coming = self._copies.up(memory.records, torch.from_numpy(read))
        new = np.isin(misses, residency.fresh, assume_unique=True)
        memory.unpin(read[new], changed=True)
        memory.unpin(read[~new], changed=False)
        swap.slots = swap.slots.to(self._device, non_blocking=True)
        self._counters.bytes_in += misses.size * self._record_bytes

    def commit(self, residency: GroupResidency) -> None:
        swap = residency.work
        if swap.plan.out_slots.size:  # before the swap-ins: they go to the same slots
            swap.leaving = self._copies.down(self.slots.index_select(0, self._there(swap.plan.out_slots)))
        if swap.plan.misses:
            self.slots.index_copy_(0, self._there(swap.plan.in_slots), self._copies.arrived(swap.coming))
        swap.committed, swap.coming = True, None

    def look(self, residency: GroupResidency) -> None:
        residency.work = self.map.slots_of(residency.rows)

    def gather(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        """One pass over composed positions: rows are not expanded twice.

        Raises:
            IndexError: a position outside the unique keys.
        """
        if not residency.train:
            return self._gather_looked(residency, positions)
        if positions is not None and self._device.type == "cpu" and torch.get_num_threads() <= _KERNEL_THREADS:
            return self._gather_by_kernel(residency.work.slots, positions)
        return self._weights.index_select(0, pick(residency.work.slots, positions))

    def apply(self, residency: GroupResidency, grads: Tensor, step: StepInfo) -> None:
        grads, known = known_grads(residency, grads), residency.work.known
        if self._device.type == "cpu":
            self._optimizer.update(self.slots.numpy(), known, grads.numpy(), step)
        else:
            optimizers_torch.update(self._optimizer, self.slots, self._there(known), grads.to(self._device), step)

    def writeback(self, residency: GroupResidency) -> None:
        """The victims, to their host records."""
        swap, memory = residency.work, self._host.memory
        if swap.leaving is not None:
            memory.records.index_copy_(0, torch.from_numpy(swap.frames), self._copies.landed(swap.leaving))
            self._counters.writebacks += swap.frames.size
            self._counters.bytes_out += swap.leaving.records.nbytes
        memory.unpin(swap.frames, changed=True)
        swap.leaving = None

    def release(self, residency: GroupResidency) -> None:
        residency.work = None

    def abandon(self, residencies: Sequence[GroupResidency]) -> None:
        stale = np.zeros(len(self.slots), dtype=bool)  # slots whose record is not that of the row the map has there
        for swap in (residency.work for residency in residencies if residency.work is not None):
            plan = swap.plan
            if swap.leaving is not None:  # gathered and not known to have landed
                self._write(plan.out_rows, self._copies.landed(swap.leaving))
            elif not swap.committed:
                here = ~stale[plan.out_slots]
                self._bring_down(plan.out_rows[here], plan.out_slots[here])
            if not swap.committed:
                stale[plan.in_slots] = True
        rows, slots = self.map.rows_in()
        self.map.forget(rows[stale[slots]])

    def flush(self) -> None:
        """All resident rows."""
        self._bring_down(*self.map.rows_in())

    def _bring_down(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """The records of slots [n] to the host records of rows [n]."""
        for begin in range(0, rows.size, _FLUSHED_AT_ONCE):
            span = slice(begin, begin + _FLUSHED_AT_ONCE)
            leaving = self._copies.down(self.slots.index_select(0, self._there(slots[span])))
            self._write(rows[span], self._copies.landed(leaving))

    def forget(self, rows: np.ndarray) -> None:
        self.map.forget(rows)

    def newest(self, rows: np.ndarray) -> Tensor:
        slots = self.map.slots_of(rows)
        here, below = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        records = torch.empty(rows.size, self.slots.shape[1], dtype=self.slots.dtype)
        records[torch.from_numpy(below)] = self._host.records(rows[below])
        leaving = self._copies.down(self.slots.index_select(0, self._there(slots[here])))
        records[torch.from_numpy(here)] = self._copies.landed(leaving)
        return records

    def overwrite(self, rows: np.ndarray, records: Tensor) -> None:
        slots = self.map.slots_of(rows)
        here = np.flatnonzero(slots >= 0)
        coming = self._copies.arrived(self._copies.up(records, torch.from_numpy(here)))
        self.slots.index_copy_(0, self._there(slots[here]), coming)

    def foresee(self, keys: KeySet) -> None:
        if self._ahead:
            self._ahead.foresee(keys)

    def end_of_stream(self) -> None:
        if self._ahead:
            self._ahead.end()

    def _gather_looked(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        """The slot's record of a resident row, the host's of any other; no record is read twice."""
        at = np.arange(len(residency.keys)) if positions is None else positions.cpu().numpy()
        slots = residency.work[at]
        weights = self._weights.index_select(0, self._there(np.maximum(slots, 0)))
        elsewhere = np.flatnonzero(slots < 0)
        if elsewhere.size:
            below = self._host.look(residency, torch.from_numpy(at[elsewhere]))
            weights.index_copy_(0, self._there(elsewhere), below.to(self._device))
        return weights

    def _gather_by_kernel(self, slots: Tensor, positions: Tensor) -> Tensor:
        """As `index_select`, and 1.2 to 1.3 times as fast on one thread: it asks for records ahead of their turn."""
        width, dim = self._weights.stride(0), self._weights.shape[1]
        weights = self.slots.new_empty(positions.numel(), dim)
        records, places, at = self.slots.view(-1).numpy(), slots.numpy(), positions.contiguous().numpy()
        if outside := gather_kernels.gather(records, width, places, at, weights.view(-1).numpy(), dim):
            raise IndexError(f"gather: {outside} positions are outside the {places.size} unique keys")
        return weights

    def _write(self, rows: np.ndarray, records: Tensor) -> None:
        """Records [n, width], in host memory, to rows [n], in portions that it can hold at once."""
        memory = self._host.memory
        portion = len(memory.records)
        for begin in range(0, rows.size, portion):
            span = slice(begin, begin + portion)
            frames = memory.pin(rows[span], np.zeros(rows[span].size, dtype=bool))
            memory.records.index_copy_(0, torch.from_numpy(frames), records[span])
            memory.unpin(frames, changed=True)

    def _there(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
