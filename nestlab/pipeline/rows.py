"""The sparse half of a step: rows from their owners to who asks for them, and gradients back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, Residency
from nestlab.exchange import Channel, PartPlan, RoutedBatch, Transport
from nestlab.exchange.codec import Codec, codec, plain_width
from nestlab.exchange.routing import Router
from nestlab.exchange.rows import Leaving, accumulate, bytes_leaving, exchange_grads, exchange_rows
from nestlab.techniques import Techniques


@dataclass
class Wire:
    """What left this rank so far, in bytes, and what it comes to. Each figure has one lane that counts it.

    Attributes:
        rows, grads: as sent; `rows_full`, `grads_full`: what they would be unquantised.
        received: rows that came, own ones too; `unique`: unique keys of this rank's batches, the least that can come.
    """

    rows: int = 0
    rows_full: int = 0
    grads: int = 0
    grads_full: int = 0
    received: int = 0
    unique: int = 0


class Rows:
    """Look-up and gradient exchange of one rank's tables, micro-batch by micro-batch."""

    def __init__(self, store: EmbeddingStore, transport: Transport, techniques: Techniques) -> None:
        back = techniques.quantise_backward
        self._store, self._transport = store, transport
        self._codec = codec(techniques.quantise)
        self._codec_back = codec(techniques.quantise if back == "same" else back)
        counts = store.options.features.counts
        self._router = Router(store.layout, transport, parts=techniques.micro_batches, count=counts)
        self._whole = Router(store.layout, transport)
        self.wire = Wire()

    def route(self, batch: Batch, present: bool = True) -> RoutedBatch:
        """Who needs what of this batch; a collective."""
        routed = self._router.route(batch, present)
        self.wire.unique += sum(routed.unique)
        return routed

    def look_up(self, routed: RoutedBatch, residency: Residency, part: int, device: torch.device) -> list[Tensor]:
        """The rows of a micro-batch's unique keys, [n_in, dim] a group, on `device`; a collective a group."""
        plans = routed.plans[part]
        rows = [self._gather(residency, g, plan, device) for g, plan in enumerate(plans)]
        self.wire.rows += self.leaving(routed, part).rows
        self.wire.rows_full += self._sum(routed, part, None).rows
        self.wire.received += sum(plan.rows for plan in plans)
        return rows

    def give_back(self, routed: RoutedBatch, part: int, grads: list[Tensor], summed: list[Tensor]) -> list[Tensor]:
        """Adds the gradients of a micro-batch's rows [n_in, dim] a group to their owners' sums; a collective a group.

        Args:
            summed: [U, dim] a group, what came so far; empty before the first micro-batch.

        Returns:
            the sums, in order (micro-batch, requester).
        """
        plans = routed.plans[part]
        self.wire.grads += self.leaving(routed, part).grads
        self.wire.grads_full += self._sum(routed, part, None).grads
        came = [
            exchange_grads(self._transport, g, plan, self._codec_back) for g, plan in zip(grads, plans, strict=True)
        ]
        if len(routed.plans) == 1 and all(plan.places is None for plan in plans):
            return came
        if not summed:
            summed = [g.new_zeros(len(keys), g.shape[1]) for g, keys in zip(came, routed.owned, strict=True)]
        for total, plan, got in zip(summed, plans, came, strict=True):
            accumulate(total, plan, got)
        return summed

    def leaving(self, routed: RoutedBatch, part: int) -> Leaving:
        """Bytes of this micro-batch that leave this rank, as they are sent."""
        rows, grads = self._sum(routed, part, self._codec).rows, self._sum(routed, part, self._codec_back).grads
        return Leaving(rows, grads)

    def look(self, batch: Batch, present: bool, device: torch.device) -> tuple[RoutedBatch, list[Tensor]]:
        """For evaluation: a whole batch's rows, none where no rank has a batch. Changes nothing; a collective."""
        routed = self._whole.route(batch, present)
        if not routed.present:
            return routed, []
        residency = self._store.prepare(routed.owned, train=False)
        plans = routed.plans[0]
        rows = [self._gather(residency, g, plan, device) for g, plan in enumerate(plans)]
        self._store.release(residency)
        return routed, rows

    def _gather(self, residency: Residency, group: int, plan: PartPlan, device: torch.device) -> Tensor:
        places = None if plan.places is None else torch.from_numpy(plan.places)
        rows = self._store.gather(residency, group, places).to(device, non_blocking=True)
        return exchange_rows(self._transport, rows, plan, self._codec)

    def _sum(self, routed: RoutedBatch, part: int, coded: Codec | None) -> Leaving:
        mesh, dtype = self._transport.mesh, self._store.dtype
        rows = grads = 0
        for plan, group in zip(routed.plans[part], self._store.groups, strict=True):
            width = plain_width(group.dim, dtype) if coded is None else coded.width(group.dim, dtype)
            leaving = bytes_leaving(plan, width, mesh)
            rows, grads = rows + leaving.rows, grads + leaving.grads
        return Leaving(rows, grads)


def gather_samples(transport: Transport, values: Tensor) -> Tensor:
    """[n] or [n, k] of every rank, by rank, joined; n may differ, and k where n is 0. On KEYS, nothing in flight."""
    if transport.mesh.world_size == 1:
        return values
    shapes = transport.all_gather(Channel.KEYS, torch.tensor([values.shape])).flatten(0, -2)
    padded = values.new_zeros(*shapes.amax(0).tolist())
    padded[tuple(map(slice, values.shape))] = values
    everyone = transport.all_gather(Channel.KEYS, padded)
    return torch.cat([everyone[rank][:size] for rank, size in enumerate(shapes[:, 0].tolist())])
