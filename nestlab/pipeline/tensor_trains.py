"""The half of a step that tensor-train tables have: each is looked up by its owner, for the samples of all ranks.

Cores of one table serve all its rows, so that ids travel and not rows: ROUTE brings them to the owners, TT_FORWARD
computes pooled rows there, group by group of tables, TT_EXCHANGE hands them to the ranks whose samples they are of, and
gradients come back in the reverse order (EcoRec's pipeline of the embedding layer). With replicated cores every rank is
the owner of all tables for its own samples alone, and CORE_REDUCE sums the gradients of cores (EL-Rec).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.batching.placement import Placement, grouped, lpt
from nestlab.embedding import Embedded, EmbeddingStore, StepInfo, TableConfig
from nestlab.embedding.tensor_train.schemes import SCHEMES, EcoRec
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.table import LookUp
from nestlab.errors import UserError
from nestlab.exchange import Channel, LocalTransport, Transport
from nestlab.exchange.codec import codec
from nestlab.exchange.core_replicas import reduce_core_grads
from nestlab.exchange.rows import Leaving
from nestlab.exchange.table_wise import (
    TableBags,
    TableRouted,
    TableRouter,
    exchange_pooled,
    exchange_pooled_grads,
    pooled_bytes_leaving,
)
from nestlab.pipeline.table_loads import Loads, move
from nestlab.pipeline.turns import TablesInFlight, Turn
from nestlab.techniques import Techniques


class TensorTrains:
    """The tensor-train tables of one rank, placed table-wise (or all of them, replicated)."""

    def __init__(
        self, store: EmbeddingStore, transport: Transport, techniques: Techniques, device: torch.device
    ) -> None:
        self._store, self._whole, self._device = store, store.whole, device
        self._replicated = techniques.tt_cores == "replicated"
        self._world = transport
        self._transport = LocalTransport() if self._replicated else transport
        back = techniques.quantise_backward
        self._codec = codec(techniques.quantise)
        self._codec_back = codec(techniques.quantise if back == "same" else back)
        by_samples = techniques.group_by == "samples"
        self._slices = techniques.table_groups if by_samples else 1
        _refuse_hot_rows(self._whole.configs, techniques)
        self._groups, self._slope = 1 if by_samples else techniques.table_groups, techniques.group_slope
        self._by_cost = techniques.group_order == "cost"
        costs = [_operations(config) for config in self._whole.configs]
        ranks = self._transport.mesh.world_size
        owner = self._whole.owner_among(ranks) or lpt(costs, ranks)
        if self._groups > (most := _most_tables(owner)):
            raise UserError(
                f"techniques: table_groups={self._groups}: no rank has so many of the {len(owner)} tensor-train "
                f"tables; give at most {most}"
            )
        self.placement = self._grouped(owner, costs)
        self._whole.keep(owner, self._transport.mesh.rank, ranks)
        self._router = TableRouter(self._whole.configs, self._transport, self.placement, store.dtype, device)
        self._scheme = _scheme(techniques)
        for table in self._whole.own.values():
            table.scheme = self._scheme
        self.loads = Loads(len(self._whole.configs), self._transport, self.placement)

    def route(self, batch: Batch, present: bool) -> tuple[TableRouted, ...]:
        """Whose ids are looked up where, slice by slice of the samples; collectives on KEYS."""
        slices = batch.micro_batches(self._slices) if self._slices > 1 else [batch]
        return tuple(self._router.route(each, present) for each in slices)

    def plan(self, routed: tuple[TableRouted, ...], train: bool = True) -> TablesInFlight:
        """Sorting and deduplication of what this rank's tables look up; no core is read. In batch order."""
        return TablesInFlight(
            tuple(
                Turn(each, group, tuple(self._look(bags, train) for bags in owned))
                for each in routed
                for group, owned in enumerate(each.owned)
            )
        )

    def forward(self, tables: TablesInFlight, number: int) -> int:
        """Rows of this rank's tables in one turn, for all ranks' samples; the bytes made."""
        turn = tables.turns[number]
        turn.outputs = []
        for bags, look in zip(turn.routed.owned[turn.group], turn.looks, strict=True):
            with self.loads.timed(bags.table):
                turn.outputs.append(self._whole.own[bags.table].forward(look))
        turn.held_outputs = sum(each.nbytes for each in turn.outputs)
        return turn.held_outputs

    def exchange(self, tables: TablesInFlight, number: int) -> int:
        """Pooled rows of a turn to the ranks whose samples they are of; the bytes that left this one."""
        turn = tables.turns[number]
        turn.pooled = exchange_pooled(
            self._transport, turn.routed, turn.group, turn.outputs, self._codec, channel=Channel.TABLES
        )
        turn.outputs, turn.held_outputs = [], 0
        turn.held_pooled = sum(each.nbytes for each in turn.pooled.values())
        return self._leaving(turn).rows

    def leaves(self, tables: TablesInFlight, inputs: list[Batch], part: int) -> dict[str, Tensor]:
        """By feature the rows of one micro-batch's samples, leaves of the autograd graph."""
        found = {}
        for config in self._whole.configs:
            for feature in config.features:
                sizes = [_rows_of(each, feature, config.pooling) for each in inputs]
                begin = sum(sizes[:part])
                rows = tables.rows(feature)[begin : begin + sizes[part]].to(self._device)
                found[feature] = rows.detach().requires_grad_()
        return found

    def add(self, embedded: Embedded, inputs: Batch, leaves: dict[str, Tensor]) -> Embedded:
        """Gives the dense part these rows beside those of other tables."""
        for config in self._whole.configs:
            for feature in config.features:
                lengths = inputs.feature_lengths()[inputs.features.index(feature)]
                embedded.add(feature, leaves[feature], lengths if config.pooling == "none" else None)
        return embedded

    def give_back(self, tables: TablesInFlight, number: int, parts: list[dict[str, Tensor]]) -> int:
        """Gradients of a turn's pooled rows to the tables' owners; the bytes that left this rank.

        Args:
            parts: of each micro-batch, the leaves; empty where this rank has no batch.
        """
        turn = tables.turns[number]
        grads = {}
        if all(parts):
            grads = {f: _joined([part[f] for part in parts])[tables.span(f, turn)] for f in turn.features}
        turn.grads = exchange_pooled_grads(
            self._transport, turn.routed, turn.group, grads, self._codec_back, channel=Channel.TABLES
        )
        turn.held_grads = sum(each.nbytes for each in turn.grads)
        return self._leaving(turn).grads

    def backward(self, tables: TablesInFlight, number: int) -> None:
        """Adds to the core gradients of this rank's tables in one turn."""
        turn = tables.turns[number]
        owned = zip(turn.routed.owned[turn.group], turn.looks, turn.grads, strict=True)
        for bags, look, grad in owned:
            with self.loads.timed(bags.table):
                self._whole.own[bags.table].backward(look, grad)
        turn.grads, turn.held_grads = [], 0

    def reduce(self) -> int:
        """Sums the gradients of replicated cores over the ranks; a collective on DENSE."""
        own = list(self._whole.own.values())
        grads, touched = [g for table in own for g in table.grads], [m for table in own for m in table.touched]
        summed, union = reduce_core_grads(self._world, grads, touched)
        for into, values in zip((*grads, *touched), (*summed, *union), strict=True):
            into.copy_(values)
        return sum(each.nbytes for each in grads) if self._world.mesh.world_size > 1 else 0

    def squares(self) -> Tensor:
        """Of all core gradients that count on this rank, 0-d float64: replicated ones count on the first alone."""
        counts = not self._replicated or self._world.mesh.rank == 0
        grads = [
            g.double().square().sum().cpu() for table in self._whole.own.values() for g in table.all_grads if counts
        ]
        return torch.stack(grads).sum() if grads else torch.zeros((), dtype=torch.float64)

    def apply(self, step: StepInfo, scale: float) -> None:
        """One optimizer step over the cores, the only one of the batch."""
        for table in self._whole.own.values():
            if scale != 1.0:
                for grad in table.all_grads:
                    grad.mul_(scale)
            table.apply(self._store.timed(step))

    def rebalance(self) -> int:
        """Moves tables where the measured loads of the ranks have drifted apart; how many moved.

        A collective on KEYS, with nothing in flight. Where a table lies changes no bit of what it learns.
        """
        owner = self.loads.proposal()
        if owner is None or _most_tables(owner) < self._groups:  # some rank needs a table in every group
            return 0
        old, new = self.placement, self._grouped(owner, self.loads.costs)
        move(self._whole, self._transport, old, new)
        for table in self._whole.own.values():
            table.scheme = self._scheme
        self.placement = new
        self._router.place(new)
        self.loads.moved(owner)
        return sum(a != b for a, b in zip(old.owner, new.owner, strict=True))

    def look(self, batch: Batch, present: bool) -> TablesInFlight:
        """For evaluation: a whole batch's rows; changes nothing, a collective."""
        routed = self.route(batch, present)
        if not any(each.present for each in routed):
            return TablesInFlight(())
        tables = self.plan(routed, train=False)
        for number in range(len(tables.turns)):
            self.forward(tables, number)
            self.exchange(tables, number)
        return tables

    def _grouped(self, owner: tuple[int, ...], costs: Sequence[float]) -> Placement:
        """Each rank's tables in groups, the dearest last, or in the order of their numbers."""
        order = costs if self._by_cost else [1.0] * len(costs)
        return grouped(owner, order, self._transport.mesh.world_size, self._groups, self._slope)

    def _look(self, bags: TableBags, train: bool) -> LookUp:
        table = self._whole.own[bags.table]
        return table.prepare(table.bags(bags.ids, bags.lengths, id_weights=bags.id_weights), train)

    def _leaving(self, turn: Turn) -> Leaving:
        return pooled_bytes_leaving(turn.routed, turn.group, self._transport.mesh, self._codec, self._codec_back)


def _rows_of(inputs: Batch, feature: str, pooling: str) -> int:
    if pooling != "none":
        return inputs.size
    return int(inputs.feature_lengths()[inputs.features.index(feature)].sum())


def _joined(leaves: list[Tensor]) -> Tensor:
    """The gradient of all micro-batches' leaves; zeros where the loss did not depend on one."""
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return grads[0] if len(grads) == 1 else torch.cat(grads)


def _operations(config: TableConfig) -> float:
    """What a look-up of every feature costs at most: the estimate that a placement begins with."""
    return float(len(config.features) * sum(config.tensor_train.shape_of(config.dim).products))


def _most_tables(owner: Sequence[int]) -> int:
    """What the rank with the most tables has."""
    return max(map(owner.count, owner))


def _refuse_hot_rows(configs: Sequence[TableConfig], techniques: Techniques) -> None:
    """A choice of hot rows depends on the batches that its table's rank sees, whole and in order."""
    hot = [config.name for config in configs if config.tensor_train.hot_rows]
    for name, given in (
        ("tt_cores", techniques.tt_cores == "replicated"),
        ("tt_rebalance", techniques.tt_rebalance > 0),
        ("group_by", techniques.group_by == "samples"),
    ):
        if hot and given:
            raise UserError(
                f"techniques: {name}={getattr(techniques, name)} does not go with the hot rows of table '{hot[0]}'; "
                "leave one out"
            )


def _scheme(techniques: Techniques) -> Scheme:
    return EcoRec(techniques.slices) if techniques.tt_scheme == "ecorec" else SCHEMES[techniques.tt_scheme]()
