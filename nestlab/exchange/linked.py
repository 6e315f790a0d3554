"""A transport under an emulated link: what leaves a rank takes at least as long as on the link described."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nestlab.exchange.link import Link
from nestlab.exchange.transport import Channel, Transport


class Linked:
    """`Transport` over another one, with a link before it; figures obtained so are labelled `emulated link`.

    Only bytes that leave the rank count, by the volume of the usual algorithms: an all-to-all sends its rows once, a
    ring all-reduce of n bytes sends 2·n·(W−1)/W from each of W ranks, a ring all-gather n·(W−1); one latency a call.
    The clock of a transfer begins when all ranks of the group are there (a transfer of one byte before it finds out),
    so that waiting for a late rank is not charged to the link. The link is full-duplex: what a rank receives takes its
    time on the wire too, but occupies the sender's queue, not its own. Whoever waits sleeps.

    Args:
        transport: does the work; `fail` and `close` go to it.
        link: of this rank, one queue for all channels.
    """

    def __init__(self, transport: Transport, link: Link) -> None:
        self.transport = transport
        self.link = link
        self.mesh = transport.mesh

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        shards, own = self.mesh.shards, self.mesh.shard
        if shards == 1:
            return self.transport.all_to_all(channel, send, send_counts, counts)
        one_each = [1] * shards
        self.transport.all_to_all(
            channel, torch.zeros(shards, dtype=torch.uint8, device=send.device), one_each, one_each
        )
        row_bytes = math.prod(send.shape[1:]) * send.element_size()
        leaving = (sum(send_counts) - send_counts[own]) * row_bytes
        coming = (sum(counts) - counts[own]) * row_bytes
        with self._passing(leaving, coming):
            return self.transport.all_to_all(channel, send, send_counts, counts)

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        ranks = self._ranks(channel)
        if ranks == 1:
            return self.transport.all_reduce(channel, flat)
        self._meet(channel, flat)
        nbytes = 2 * flat.numel() * flat.element_size() * (ranks - 1) // ranks
        with self._passing(nbytes, nbytes):
            return self.transport.all_reduce(channel, flat)

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        ranks = self._ranks(channel)
        if ranks == 1:
            return self.transport.all_gather(channel, values)
        self._meet(channel, values)
        nbytes = values.numel() * values.element_size() * (ranks - 1)
        with self._passing(nbytes, nbytes):
            return self.transport.all_gather(channel, values)

    @property
    def failure(self) -> str:
        return getattr(self.transport, "failure", "")

    def fail(self, place: str, error: BaseException) -> None:
        self.transport.fail(place, error)

    def close(self) -> None:
        self.transport.close()

    def _ranks(self, channel: Channel) -> int:
        return self.mesh.replicas if channel is Channel.REPLICAS else self.mesh.world_size

    def _meet(self, channel: Channel, like: Tensor) -> None:
        self.transport.all_gather(channel, torch.zeros(1, dtype=torch.uint8, device=like.device))

    @contextmanager
    def _passing(self, leaving: int, coming: int) -> Iterator[None]:
        begin = time.perf_counter()
        with self.link.transfer(leaving):
            yield
            model = self.link.model
            if model is None:
                return
            end = begin + model.latency_s + model.wire_s(coming)
            while (left := end - time.perf_counter()) > 0:
                time.sleep(left)
