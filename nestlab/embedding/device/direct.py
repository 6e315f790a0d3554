"""`Direct`: no device tier. Rows are read from and updated in the host tier: the reference for every other tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.counters import Counters
from nestlab.embedding.device.tier import known_grads, pick
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import GroupResidency
from nestlab.embedding.tiers import Tiers


@dataclass(eq=False)
class _Frames:
    """Where the rows of a batch lie: `pinned` [R] the frames of its rows, `places` [U] the same, −1 for no row."""

    pinned: np.ndarray
    places: Tensor


class Direct:
    """The device-tier protocol (docs/design.md 4.2) without a device tier.

    `commit` and `writeback` have nothing to do: the host record is the newest one from the moment `apply` returns. What
    orders two batches is therefore UPDATE(t−1) → EMB(t) alone, which is the schedule's business.
    """

    name = "direct"
    nbytes = 0

    def __init__(self, host: HostTier, optimizer: RowOptimizer, options: Tiers, counters: Counters) -> None:
        self._host, self._optimizer = host, optimizer
        self._weights = host.memory.records[:, : host.group.dim]

    def require_room(self, residency: GroupResidency) -> None:
        pass

    def plan(self, residency: GroupResidency) -> None:
        pass

    def retrieve(self, residency: GroupResidency) -> None:
        pinned = self._host.pin(residency, residency.with_row)
        places = pinned
        if residency.rowless.size:
            places = np.full(len(residency.keys), -1, dtype=np.int64)
            places[residency.with_row] = pinned
        residency.work = _Frames(pinned, torch.from_numpy(places))

    def commit(self, residency: GroupResidency) -> None:
        pass

    def look(self, residency: GroupResidency) -> None:
        pass

    def gather(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        if not residency.train:
            return self._host.look(residency, positions)
        places = pick(residency.work.places, positions)
        if not residency.rowless.size:
            # `index_select` over the record view, not a numba loop: the loop took five times as long on rows in DRAM.
            return self._weights.index_select(0, places)
        return self._host.complete(self._weights.index_select(0, places.clamp(min=0)), residency, positions)

    def apply(self, residency: GroupResidency, grads: Tensor, step: StepInfo) -> None:
        grads = known_grads(residency, grads).cpu()
        self._optimizer.update(self._host.memory.array, residency.work.pinned, grads.numpy(), step)

    def writeback(self, residency: GroupResidency) -> None:
        pass

    def release(self, residency: GroupResidency) -> None:
        self._host.memory.unpin(residency.work.pinned, changed=True)

    def abandon(self, residencies: Sequence[GroupResidency]) -> None:
        pass  # nothing was changed, and the pins are gone

    def flush(self) -> None:
        pass

    def forget(self, rows: np.ndarray) -> None:
        pass

    def newest(self, rows: np.ndarray) -> Tensor:
        return self._host.records(rows)

    def overwrite(self, rows: np.ndarray, records: Tensor) -> None:
        pass

    def foresee(self, keys: KeySet) -> None:
        pass

    def end_of_stream(self) -> None:
        pass
