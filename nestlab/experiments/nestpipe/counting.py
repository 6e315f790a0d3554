"""A transport that counts: how many bytes each channel carries, so that key routing can be told from rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from nestlab.exchange import Channel, Transport


class Counted:
    """`Transport` over another one. `sent`: bytes given to collectives so far, by channel, own shares included."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.mesh = transport.mesh
        self.sent: Counter[str] = Counter()

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        self.sent[channel.value] += send.nbytes
        return self.transport.all_to_all(channel, send, send_counts, counts)

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        self.sent[channel.value] += flat.nbytes
        return self.transport.all_reduce(channel, flat)

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        self.sent[channel.value] += values.nbytes
        return self.transport.all_gather(channel, values)

    def fail(self, place: str, error: BaseException) -> None:
        self.transport.fail(place, error)

    def close(self) -> None:
        self.transport.close()
