"""How bytes travel between ranks."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Transport(Protocol):
    """The collectives that a training step needs."""

    rank: int
    world_size: int

    def all_reduce(self, flat: Tensor) -> Tensor:
        """The sum of every rank's `flat` (any dtype, equal shapes), which may be overwritten."""
        ...


class LocalTransport:
    """One rank: its own values are already the sum."""

    rank = 0
    world_size = 1

    def all_reduce(self, flat: Tensor) -> Tensor:
        return flat
