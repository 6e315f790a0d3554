"""`Direct`: no device tier. Rows are read from and updated in the host tier: the reference for every other tier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.embedding.host import HostTier
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import Residency


class Direct:
    """The device-tier protocol (docs/design.md 4.2) without a device tier.

    `commit` and `writeback` have nothing to do: the host record is the newest one from the moment `apply` returns. What
    orders two batches is therefore UPDATE(t−1) → EMB(t) alone, which is the schedule's business.
    """

    name = "direct"

    def __init__(self, hosts: Sequence[HostTier], optimizer: RowOptimizer) -> None:
        self._hosts, self._optimizer = hosts, optimizer

    def commit(self, residency: Residency) -> None:
        pass

    def gather(self, residency: Residency, group: int, positions: Tensor | None) -> Tensor:
        """[n, dim] copy of the weights at `positions` of the unique keys (all when None)."""
        host, rows = self._hosts[group], residency.rows[group]
        rows = rows if positions is None else rows.index_select(0, positions)
        if residency.train:
            return host.weights(rows)
        at = torch.arange(rows.numel()) if positions is None else positions
        return host.weights_or_default(rows, residency.keys[group], at.numpy())

    def apply(self, residency: Residency, group: int, grads: Tensor, step: StepInfo) -> None:
        """One row-optimizer step of one group on grads [U, dim], contiguous, of the records' dtype, in host memory."""
        records = self._hosts[group].arena.array
        self._optimizer.update(records, residency.rows[group].numpy(), grads.numpy(), step)

    def writeback(self, residency: Residency) -> None:
        pass

    def release(self, residency: Residency) -> None:
        pass
