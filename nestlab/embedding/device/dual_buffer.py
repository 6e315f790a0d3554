"""`DualBuffer`: two buffers, each holding exactly one batch's rows (NestPipe's dual-buffer pipeline).

Buffer t mod 2 is batch t's. While t−1 is computed in the other one, `retrieve(t)` fills it with K(t) ∖ K(t−1) from the
host tier; `commit(t)` then copies K(t) ∩ K(t−1), weights with their states, from the other buffer.

Which call relies on which order (docs/design.md 4.2, hazards in brackets):
* `retrieve(t)` comes after `writeback(t−2)`: a row in t−2 and t but not t−1 is read from the host tier (2), and the
  buffer of t−2 is written over. And after `commit(t−1)`, which reads that buffer.
* `commit(t)` comes after `apply(t−1)`.
* `writeback(t)` comes after `apply(t)`, and after `writeback(t−1)`: the older record must not land last.

The intersection goes by row. The host tier gives the row of an evicted key to no other key for two batches, so that the
same row is the same generation of the same key (5). Host frames of K(t) are pinned from `retrieve` to `writeback` (6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import optimizers_torch
from nestlab.embedding.counters import Counters
from nestlab.embedding.device import buffer_kernels
from nestlab.embedding.device.copies import Copies
from nestlab.embedding.device.tier import known_grads
from nestlab.embedding.host.arena import zeros
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import GroupResidency
from nestlab.embedding.tiers import Tiers


@dataclass(eq=False)
class _Half:
    """One batch in its buffer. The record of key i lies at place i.

    Attributes:
        number: of the batch among those planned, from 1; its buffer is number mod 2.
        shared, before: [c] int64: keys that the batch before has too, and their places in its buffer.
        fetched: [f] int64: the other keys that have a row.
        previous: the batch before, until its records are copied.
        records: [≥ U, width], the buffer from `retrieve` on.
        frames: [f + c] in host memory: of the fetched keys, then of the shared ones.
        committed: the shared records are here.
    """

    number: int
    shared: np.ndarray
    before: np.ndarray
    fetched: np.ndarray
    previous: _Half | None
    records: Tensor | None = None
    frames: np.ndarray | None = None
    committed: bool = False


class DualBuffer:
    """The device-tier protocol over two buffers. `retrieve` is at most one batch ahead of `commit`."""

    name = "dual_buffer"

    def __init__(self, host: HostTier, optimizer: RowOptimizer, options: Tiers, counters: Counters) -> None:
        self._host, self._optimizer, self._counters = host, optimizer, counters
        self._device = torch.device(options.device)
        self._defaults = options.features.defaults(host.group.tables)
        self._places = zeros(host.rows.capacity, np.int64)
        self._copies = Copies(self._device, options.link)
        empty = torch.empty(0, host.memory.records.shape[1], dtype=host.memory.records.dtype, device=self._device)
        self._buffers = [empty, empty]
        self._number = 0
        self._last: _Half | None = None

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers) + self._host.rows.ever * self._places.itemsize

    def require_room(self, residency: GroupResidency) -> None:
        pass

    def plan(self, residency: GroupResidency) -> None:
        self._number += 1
        shared, before, fetched = (np.empty(len(residency.keys), dtype=np.int64) for _ in range(3))
        both, only = buffer_kernels.intersect(residency.rows, self._places, self._number, shared, before, fetched)
        half = _Half(self._number, shared[:both], before[:both], fetched[:only], self._last)
        residency.work = self._last = half
        self._counters.hits += both
        self._counters.misses += only

    def retrieve(self, residency: GroupResidency) -> None:
        half = residency.work
        half.records = self._buffer(half.number, len(residency.keys))
        half.frames = self._host.pin(residency, half.fetched, residency.rows[half.shared])
        read = torch.from_numpy(half.frames[: half.fetched.size])
        coming = self._copies.arrived(self._copies.up(self._host.memory.records, read))
        half.records.index_copy_(0, self._there(half.fetched), coming)
        if residency.rowless.size:
            self._write_defaults(residency, half.records)
        self._counters.bytes_in += coming.nbytes

    def commit(self, residency: GroupResidency) -> None:
        half = residency.work
        if half.shared.size:
            newest = half.previous.records.index_select(0, self._there(half.before))
            half.records.index_copy_(0, self._there(half.shared), newest)
        half.committed, half.previous = True, None

    def look(self, residency: GroupResidency) -> None:
        pass  # every batch is written back: the host tier has the newest record once nothing is in flight

    def gather(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        if not residency.train:
            return self._host.look(residency, None if positions is None else positions.cpu()).to(self._device)
        weights = residency.work.records[: len(residency.keys), : self._host.group.dim]
        if positions is None:
            return weights.clone(memory_format=torch.contiguous_format)
        return weights.index_select(0, positions.to(self._device))

    def apply(self, residency: GroupResidency, grads: Tensor, step: StepInfo) -> None:
        grads, records = known_grads(residency, grads), residency.work.records
        known = np.flatnonzero(residency.rows >= 0) if residency.rowless.size else np.arange(len(residency.keys))
        if self._device.type == "cpu":
            self._optimizer.update(records.numpy(), known, grads.numpy(), step)
        else:
            optimizers_torch.update(self._optimizer, records, self._there(known), grads.to(self._device), step)

    def writeback(self, residency: GroupResidency) -> None:
        """All of K(t), to their host records."""
        half, memory = residency.work, self._host.memory
        keys = np.concatenate([half.fetched, half.shared])
        leaving = self._copies.down(half.records.index_select(0, self._there(keys)))
        memory.records.index_copy_(0, torch.from_numpy(half.frames), self._copies.landed(leaving))
        memory.unpin(half.frames, changed=True)
        self._counters.writebacks += keys.size
        self._counters.bytes_out += leaving.records.nbytes

    def release(self, residency: GroupResidency) -> None:
        residency.work = None

    def abandon(self, residencies: Sequence[GroupResidency]) -> None:
        for residency in residencies:
            half = residency.work
            if half is None or half.frames is None or not half.shared.size:
                continue
            rows = residency.rows[half.shared]  # their frames may have been made ready to be overwritten
            where = (half.records, half.shared) if half.committed else (half.previous.records, half.before)
            newest = self._copies.landed(self._copies.down(where[0].index_select(0, self._there(where[1]))))
            frames = self._host.memory.pin(rows, np.zeros(rows.size, dtype=bool))
            self._host.memory.records.index_copy_(0, torch.from_numpy(frames), newest)
            self._host.memory.unpin(frames, changed=True)
        self._number += 1  # the next batch shares its rows with no other
        self._last = None

    def flush(self) -> None:
        pass

    def forget(self, rows: np.ndarray) -> None:
        self._places[rows[rows >= 0]] = 0

    def newest(self, rows: np.ndarray) -> Tensor:
        return self._host.records(rows)  # every batch is written back

    def overwrite(self, rows: np.ndarray, records: Tensor) -> None:
        """In the newest buffer, from which the next batch copies what it shares with that one."""
        words = self._places[rows]
        here = np.flatnonzero((words >> buffer_kernels.POSITION_BITS == self._number) & (words != 0))
        if self._last is not None and here.size:
            at = self._there(words[here] & ((1 << buffer_kernels.POSITION_BITS) - 1))
            coming = self._copies.arrived(self._copies.up(records, torch.from_numpy(here)))
            self._last.records.index_copy_(0, at, coming)

    def foresee(self, keys: KeySet) -> None:
        pass

    def end_of_stream(self) -> None:
        pass

    def _buffer(self, number: int, keys: int) -> Tensor:
        """The buffer of a batch; a larger one in its place if need be. Nothing else uses it now, see above."""
        buffer = self._buffers[number % 2]
        if len(buffer) < keys:
            self._buffers[number % 2] = buffer = buffer.new_zeros(max(keys, 2 * len(buffer)), buffer.shape[1])
        return buffer

    def _write_defaults(self, residency: GroupResidency, records: Tensor) -> None:
        values = self._defaults[residency.keys.tables(residency.rowless)]
        weights = torch.from_numpy(values).to(records)[:, None].expand(-1, self._host.group.dim)
        records[:, : self._host.group.dim].index_copy_(0, self._there(residency.rowless), weights)

    def _there(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
