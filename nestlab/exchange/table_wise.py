"""Tables that one rank holds whole: ids travel to a table's owner, what it looked up travels back.

The row-wise exchange (`nestlab.exchange.routing`) cannot carry a tensor-train table, whose cores are shared by all its
rows. Here the owner looks up the bags of all ranks' samples, and every rank gets the pooled rows (of a sequence: each
row) of its own samples; gradients go back the same way. An owner goes through ranks, features and samples in one order,
whatever the placement: it only decides where a table is looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from nestlab.batch import Batch
from nestlab.batching.placement import Placement
from nestlab.embedding.config import TableConfig
from nestlab.errors import UserError
from nestlab.exchange.table_wise_messages import Asked, Form, Header, TablePart, join, pack, unpack
from nestlab.exchange.table_wise_routed import TableBags, TableRouted
from nestlab.exchange.table_wise_rows import exchange_pooled, exchange_pooled_grads, pooled_bytes_leaving
from nestlab.exchange.transport import Channel, Mesh, Transport

__all__ = [
    "Placement",
    "TableBags",
    "TableRouted",
    "TableRouter",
    "exchange_pooled",
    "exchange_pooled_grads",
    "pooled_bytes_leaving",
]


class TableRouter:
    """The stage ROUTE of tables that are placed whole. Every rank calls `route` for the same batches, in one order.

    Two collectives a batch on channel KEYS: counts, with which ends and weights are agreed on, and ids with lengths.
    On one rank there is neither, and nothing is copied where a table's features lie together in the batch.

    Args:
        tables: T of them; their features are some of a batch's features, in any order there.
        placement: the same on every rank.
        dtype, device: of the rows that travel.

    Raises:
        UserError: replica groups; a placement for other tables or ranks; a table or feature that appears twice.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        transport: Transport,
        placement: Placement,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.tables = tuple(tables)
        self._transport, self._mesh = transport, transport.mesh
        self._dtype, self._device = dtype, torch.device(device)
        require_one_replica(self._mesh)
        _refuse_repeats(self.tables)
        self.place(placement)

    @property
    def placement(self) -> Placement:
        return self._placement

    def place(self, placement: Placement) -> None:
        """Batches routed from now on go by this placement; those routed before keep theirs. No collective.

        Raises:
            UserError: it is for other tables or ranks.
        """
        if placement.tables != len(self.tables):
            raise UserError(
                f"placement: owners of {placement.tables} tables for {len(self.tables)}; give each one owner"
            )
        placement.check(self._mesh.world_size)
        self._placement = placement

    def route(self, batch: Batch, present: bool = True) -> TableRouted:
        """Sends each table's ids to its owner, and receives those of this rank's tables from all ranks.

        Args:
            present: False where this rank's data have ended; the batch is then an empty one.

        Raises:
            UserError: the batch lacks a feature of some table.
            RankFailed: see `Transport`.
        """
        asked = Asked.of(batch, self.tables)
        mine = self._placement.of_rank(self._mesh.rank)
        if self._mesh.world_size == 1:
            headers, by_rank = [Header.of(batch, (), present)], [[asked.parts[t] for t in mine]]
        else:
            headers, by_rank = self._exchange(batch, asked.parts, present)
        by_table = zip(mine, zip(*by_rank, strict=True), strict=True)
        bags = {t: join(t, self.tables[t], parts) for t, parts in by_table}
        groups = range(len(self._placement.groups))
        return TableRouted(
            tables=self.tables,
            placement=self._placement,
            owned=tuple(tuple(bags[t] for t in self._placement.owned(g, self._mesh.rank)) for g in groups),
            rows=asked.rows(self.tables, batch.size),
            weight=_sum(headers),
            present=any(header.present for header in headers),
            dtype=self._dtype,
            device=self._device,
        )

    def _exchange(self, batch: Batch, parts: Sequence[TablePart], present: bool):
        """[W] the header of each rank, and [W][T_own] its part of each of this rank's tables."""
        of_ranks = [self._placement.of_rank(rank) for rank in range(self._mesh.world_size)]
        going = [[parts[t] for t in tables] for tables in of_ranks]
        headers = [Header.of(batch, pieces, present) for pieces in going]
        forms = [self._form(header, tables) for header, tables in zip(headers, of_ranks, strict=True)]
        mine = of_ranks[self._mesh.rank]
        told = self._all_to_all([each.pack() for each in headers], [Header.words(len(mine))] * len(of_ranks))
        came = [Header.unpack(words) for words in told]
        expected = [self._form(header, mine) for header in came]
        messages = [pack(pieces, form) for pieces, form in zip(going, forms, strict=True)]
        received = self._all_to_all(messages, [form.words for form in expected])
        return came, [unpack(message, form) for message, form in zip(received, expected, strict=True)]

    def _form(self, header: Header, tables: Sequence[int]) -> Form:
        return Form.of(header, [self.tables[t] for t in tables])

    def _all_to_all(self, messages: Sequence[np.ndarray], words: Sequence[int]) -> list[np.ndarray]:
        """[W] what came of messages [W] of 8-byte words, of which `words` are expected of each rank."""
        send = torch.from_numpy(np.concatenate(messages))
        came = self._transport.all_to_all(Channel.KEYS, send, [each.size for each in messages], words)
        return np.split(came.cpu().numpy(), np.cumsum(words)[:-1])


def require_one_replica(mesh: Mesh) -> None:
    """Raises UserError where ranks form replica groups: a whole table has one owner."""
    if mesh.replicas > 1:
        raise UserError(
            f"tables placed whole (tensor train) and {mesh.replicas} replica groups do not combine; "
            "give replica_groups=1, or tt_cores=replicated"
        )


def _refuse_repeats(tables: Sequence[TableConfig]) -> None:
    for kind, names in (("table", [t.name for t in tables]), ("feature", [f for t in tables for f in t.features])):
        if repeats := [name for name, times in Counter(names).items() if times > 1]:
            raise UserError(f"tables placed whole: {kind} '{repeats[0]}' appears twice; name each once")


def _sum(headers: Sequence[Header]) -> float:
    """Of the weights, in rank order: the same bits on every rank."""
    total = 0.0
    for header in headers:
        total += header.weight
    return total
