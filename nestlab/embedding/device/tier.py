"""What every device tier does for one group of tables: one protocol, so that cache and pipeline are separate flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.keyset import KeySet
from nestlab.embedding.optimizers import StepInfo
from nestlab.embedding.residency import GroupResidency


class DeviceTier(Protocol):
    """Calls come in the order plan, retrieve, commit, gather …, apply, writeback, release for one batch.

    Which call of one batch may run beside which of another is said in nestlab/pipeline/edges.py, table by table.
    `plan` comes in batch order, and never beside `evict` or `look`.
    """

    name: str

    def require_room(self, residency: GroupResidency) -> None:
        """Before `plan`, for all groups before any is planned: changes nothing.

        Raises:
            CacheTooSmall: the batches in flight do not fit.
        """
        ...

    def plan(self, residency: GroupResidency) -> None:
        """Chooses places and victims. Data only: no record moves."""
        ...

    def retrieve(self, residency: GroupResidency) -> None:
        """Pins the host frames this batch needs and fetches what is missing; new records are initialised."""
        ...

    def commit(self, residency: GroupResidency) -> None:
        """Makes the device tier hold the newest records of the batch's rows."""
        ...

    def look(self, residency: GroupResidency) -> None:
        """For evaluation, in place of plan, retrieve and commit: finds the newest records. Changes nothing."""
        ...

    def gather(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        """[n, dim] copy of the weights at `positions` [n] int64 of the unique keys (all when None)."""
        ...

    def apply(self, residency: GroupResidency, grads: Tensor, step: StepInfo) -> None:
        """One row-optimizer step on grads [U, dim], contiguous, of the records' dtype. Keys without a row: nothing."""
        ...

    def writeback(self, residency: GroupResidency) -> None:
        """Hands changed records down to the host tier."""
        ...

    def release(self, residency: GroupResidency) -> None:
        """The batch is over."""
        ...

    def abandon(self, residencies: Sequence[GroupResidency]) -> None:
        """Batches that were planned and will not be applied, in order: what they hold of other batches' rows is brought
        down, what never came is forgotten. Whatever call they were broken off in, this one cannot fail for want of
        room. Every earlier batch is over, and nothing is pinned.
        """
        ...

    def flush(self) -> None:
        """Makes the host tier hold the newest record of every row; what is here stays. No batch is in flight."""
        ...

    def forget(self, rows: np.ndarray) -> None:
        """The keys of these rows were evicted: what is here of them is void, and never written back."""
        ...

    def newest(self, rows: np.ndarray) -> Tensor:
        """[n, width] copy, in host memory, of the newest records of rows [n] ≥ 0. No batch is in flight."""
        ...

    def overwrite(self, rows: np.ndarray, records: Tensor) -> None:
        """Records [n, width], in host memory, that the host tier has of rows [n] ≥ 0 from now on: what is here of them
        becomes the same. No batch is in flight."""
        ...

    def foresee(self, keys: KeySet) -> None:
        """The keys of the batch `look_ahead` batches ahead, for policies that look ahead."""
        ...

    def end_of_stream(self) -> None:
        """No more batches come after those that were foreseen."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, and of the maps that go with it."""
        ...


def known_grads(residency: GroupResidency, grads: Tensor) -> Tensor:
    """The rows of grads [U, dim] whose keys have a row."""
    if not residency.rowless.size:
        return grads
    return grads.index_select(0, torch.from_numpy(np.flatnonzero(residency.rows >= 0)))


def pick(places: Tensor, positions: Tensor | None) -> Tensor:
    """places[positions], all when None."""
    return places if positions is None else places.index_select(0, positions.to(places.device))
