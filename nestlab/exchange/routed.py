"""What key routing finds out about a batch: who needs which rows of whom, micro-batch by micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.embedding import GroupKeys, KeySet
from nestlab.exchange.table_wise_routed import TableRouted


@dataclass(frozen=True, eq=False)
class PartPlan:
    """The rows of one group of tables that travel for one micro-batch. S shards.

    The requester's list of rows is sorted by owner; the owner's by requester, each requester's run in the order in
    which that rank lists it: what All2All delivers needs no reordering on either side.

    Attributes:
        places: [n_out] int64, places in the owner's KeySet of the rows that this rank sends, requester by requester;
            None where they are all of the set, in its order.
        send_counts: [S], rows that go to each requester; they sum to n_out.
        counts: [S], rows that come from each owner; they sum to n_in, the length of this rank's list.
    """

    places: np.ndarray | None
    send_counts: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """n_in, the unique keys of this rank's micro-batch."""
        return sum(self.counts)


@dataclass(frozen=True, eq=False)
class RoutedBatch:
    """A batch after ROUTE. G groups of tables, N micro-batches.

    Attributes:
        owned: [G] the unique keys that this rank owns, over all requesters: what the store resolves. Counts and clicks
            are summed over the requesters.
        parts: [N][G] how the ids of a micro-batch map onto its list of rows: `positions` point into that list; `keys`
            are those of this rank's whole batch.
        plans: [N][G].
        weight: the sum of the samples' weights over all ranks: what the loss is divided by.
        present: some rank has a batch; False: the data end here, on every rank.
        unique: [G] unique keys of this rank's batch: the lower bound of the rows that come.
        tables: what the owners of tensor-train tables look up, slice by slice of the samples; empty: there are none.
    """

    owned: tuple[KeySet, ...]
    parts: tuple[tuple[GroupKeys, ...], ...]
    plans: tuple[tuple[PartPlan, ...], ...]
    weight: float
    present: bool
    unique: tuple[int, ...]
    tables: tuple[TableRouted, ...] = ()

    @property
    def nbytes(self) -> int:
        whole = sum(each.nbytes for each in self.tables)
        owned = sum(keys.ids.nbytes for keys in self.owned)
        return whole + owned + sum(keys.positions.nbytes for part in self.parts for keys in part)
