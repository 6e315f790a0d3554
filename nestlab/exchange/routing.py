"""Key routing: which rank needs which rows of whom, for every micro-batch of a batch at once.

Two collectives a batch on channel KEYS: the counts, with which ends, weights and the number of micro-batches are agreed
on, and the keys. On one shard there is neither; with several replica groups one more agreement spans the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nestlab.batch import Batch
from nestlab.embedding import KeyLayout, route
from nestlab.errors import UserError
from nestlab.exchange.key_messages import Entries, KeyMessage
from nestlab.exchange.owned import Owned, merge, own_all
from nestlab.exchange.requests import Request, request
from nestlab.exchange.routed import PartPlan, RoutedBatch
from nestlab.exchange.transport import Channel, Transport
from nestlab.exchange.warmup import warm_up

MAX_PARTS = 64  # a mask has 64 bits


@dataclass(frozen=True, eq=False)
class _Agreed:
    """What the ranks tell each other first; `wanted` [S, ΣT] int64 are the keys that each asks of this rank."""

    present: bool
    weight: float
    wanted: np.ndarray


class Router:
    """The stage ROUTE of one rank. Every rank calls `route` for the same batches, in one order.

    Args:
        parts: micro-batches a batch, N; the same on every rank.
        count: keys carry counts and clicks.

    Raises:
        UserError: parts is not 1 … 64.
    """

    def __init__(self, layout: KeyLayout, transport: Transport, parts: int = 1, count: bool = False) -> None:
        if not 1 <= parts <= MAX_PARTS:
            raise UserError(f"micro_batches: {parts}; give 1 … {MAX_PARTS}")
        self.parts = parts
        self._layout, self._transport, self._count = layout, transport, count
        self._mesh = transport.mesh
        self._message = KeyMessage(parts, count)
        warm_up()

    def route(self, batch: Batch, present: bool = True) -> RoutedBatch:
        """Deduplicates the batch, asks the owners, and learns what the other ranks ask of this one.

        Args:
            present: False where this rank's data have ended; the batch is then an empty one.

        Raises:
            UserError: features and tables do not match, or the ranks do not all have the same number of micro-batches.
            RankFailed: see `Transport`.
        """
        routed = route(batch, self._layout, count=self._count)
        requests = [request(group, batch.size, self.parts, self._mesh.shards) for group in routed]
        agreed = self._agree(batch.total_weight, present, requests)
        owned = self._exchange(requests, agreed.wanted)
        return RoutedBatch(
            owned=tuple(each.keys for each in owned),
            parts=tuple(tuple(each.parts[part] for each in requests) for part in range(self.parts)),
            plans=tuple(self._plans(requests, owned, part) for part in range(self.parts)),
            weight=agreed.weight,
            present=agreed.present,
            unique=tuple(len(each.keys) for each in requests),
        )

    def _agree(self, weight: float, present: bool, requests: Sequence[Request]) -> _Agreed:
        mesh = self._mesh
        none = np.zeros((mesh.shards, 0), dtype=np.int64)  # a store may have no table of rows
        wanted = np.concatenate([none, *(each.wanted for each in requests)], axis=1)
        own = np.array([present, np.float64(weight).view(np.int64), self.parts], dtype=np.int64)
        if mesh.shards > 1:
            told = np.hstack([np.broadcast_to(own, (mesh.shards, own.size)), wanted])
            once = [1] * mesh.shards
            told = self._transport.all_to_all(Channel.KEYS, torch.from_numpy(told), once, once).cpu().numpy()
            world, wanted = told[:, : own.size], told[:, own.size :]
        else:
            world = own[None]
        if mesh.replicas > 1:
            world = self._transport.all_gather(Channel.KEYS, torch.from_numpy(own)).cpu().numpy()
        self._check_parts(world[:, 2])
        return _Agreed(bool(world[:, 0].any()), _sum(world), wanted)

    def _check_parts(self, parts: np.ndarray) -> None:
        """Every rank sees the same numbers and says the same."""
        if other := [rank for rank, each in enumerate(parts) if each != parts[0]]:
            raise UserError(
                f"micro_batches: {parts[0]} on rank 0, {parts[other[0]]} on rank {other[0]}; give every rank the same"
            )

    def _exchange(self, requests: Sequence[Request], wanted: np.ndarray) -> list[Owned]:
        """`wanted` [S, ΣT] is what the requesters ask of this rank, all groups side by side."""
        if self._mesh.shards == 1 or not requests:
            return [own_all(each) for each in requests]
        widths = np.cumsum([each.wanted.shape[1] for each in requests])[:-1]
        by_group = np.split(wanted, widths, axis=1)
        sizes = np.stack([each.sum(axis=1) for each in by_group], axis=1).tolist()  # [S][G]
        received = self._send_keys(requests, [sum(of_groups) for of_groups in sizes])
        runs = [entries.split(of_groups) for entries, of_groups in zip(received, sizes, strict=True)]
        return [
            merge([of_groups[g] for of_groups in runs], np.ascontiguousarray(group), self.parts)
            for g, group in enumerate(by_group)
        ]

    def _send_keys(self, requests: Sequence[Request], coming: Sequence[int]) -> list[Entries]:
        """[S] what each requester asks, all groups one after the other; `coming` [S] are their numbers of keys."""
        words = self._message.words
        of_owners = list(zip(*(each.by_owner() for each in requests), strict=True))
        going = [words(sum(run.ids.size for run in runs)) for runs in of_owners]
        send = np.empty(sum(going), np.int64)
        for runs, message in zip(of_owners, _cut(send, going), strict=True):
            self._message.pack(runs, message)
        counts = [words(n) for n in coming]
        flat = self._transport.all_to_all(Channel.KEYS, torch.from_numpy(send), going, counts).cpu().numpy()
        return [self._message.unpack(message, n) for message, n in zip(_cut(flat, counts), coming, strict=True)]

    @staticmethod
    def _plans(requests: Sequence[Request], owned: Sequence[Owned], part: int) -> tuple[PartPlan, ...]:
        return tuple(
            PartPlan(mine.places[part], tuple(mine.counts[part].tolist()), tuple(asked.counts[part].tolist()))
            for asked, mine in zip(requests, owned, strict=True)
        )


def _cut(values: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


def _sum(told: np.ndarray) -> float:
    """The sum of the weights [W, 3] told, in rank order: the same bits on every rank."""
    total = 0.0
    for weight in np.ascontiguousarray(told[:, 1]).view(np.float64).tolist():
        total += weight
    return total
