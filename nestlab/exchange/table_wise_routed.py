"""What the routing of whole tables finds out about a batch: what an owner looks up, and what each rank gets of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nestlab.batching.placement import Placement
from nestlab.embedding.config import TableConfig


@dataclass(frozen=True, eq=False)
class TableBags:
    """What the owner of one table looks up for the samples of all ranks, W of them; in host memory.

    Bags are ordered by rank, then by the table's features in the order of its configuration, then by sample.

    Attributes:
        table: its number.
        ids: [nnz] int64, as in the batch.
        lengths: [bags] int64.
        id_weights: [nnz] float32, of a table with sum pooling where some rank's batch has weights; None: all ones.
        rows: [W], rows of the look-up's output that go to each rank: bags, or with pooling `none` ids.
    """

    table: int
    ids: Tensor
    lengths: Tensor
    id_weights: Tensor | None
    rows: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        weights = 0 if self.id_weights is None else self.id_weights.nbytes
        return self.ids.nbytes + self.lengths.nbytes + weights


@dataclass(frozen=True, eq=False)
class TableRouted:
    """A batch after ROUTE of T tables placed whole, G groups of them.

    Attributes:
        tables: [T].
        placement: the one it was routed by.
        owned: [G], of the group's tables those that this rank owns, in the group's order.
        rows: [T][F_t], rows of each feature's output for this rank's own samples: B, or with pooling `none` its ids.
        weight: the sum of the samples' weights over all ranks.
        present: some rank has a batch; False: the data end here, on every rank.
        dtype, device: of the rows that travel.
    """

    tables: tuple[TableConfig, ...]
    placement: Placement
    owned: tuple[tuple[TableBags, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    weight: float
    present: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return sum(bags.nbytes for group in self.owned for bags in group)

    def by_owner(self, group: int, ranks: int) -> list[tuple[int, ...]]:
        """[W] the group's tables of each rank: the order in which rows of one rank's samples come from the owners."""
        return [self.placement.owned(group, rank) for rank in range(ranks)]
