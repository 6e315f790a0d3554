"""How bytes travel between ranks: what a training step asks of a transport, and the one for a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class Channel(StrEnum):
    """What travels apart, each on a process group of its own, in one order on every rank.

    A lane that communicates has a channel, so that two lanes never meet in one group.
    """

    KEYS = "keys"
    ROWS = "rows"
    TABLES = "tables"
    DENSE = "dense"
    REPLICAS = "replicas"


@dataclass(frozen=True)
class Mesh:
    """Where a rank stands among `world_size` ranks: `replicas` groups, each of which holds all tables in shards.

    Ranks r·S … r·S + S−1 are the S shards of replica group r (2D sparse parallelism; one group is the flat layout).

    Raises:
        ValueError: the groups do not divide the world, or the rank lies outside it.
    """

    rank: int = 0
    world_size: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.world_size % self.replicas:
            raise ValueError(f"Mesh: {self.replicas} replica groups do not divide {self.world_size} ranks")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"Mesh: rank {self.rank} in a world of {self.world_size}")

    @property
    def shards(self) -> int:
        """Ranks over which one copy of the tables is spread, S."""
        return self.world_size // self.replicas

    @property
    def shard(self) -> int:
        """This rank's shard: the keys that `owner(ids, table, shards)` gives this number are its own."""
        return self.rank % self.shards

    @property
    def replica(self) -> int:
        return self.rank // self.shards


class Transport(Protocol):
    """The collectives of a training step. Every rank calls them in one order a channel, from one thread a channel.

    `all_to_all` stays inside the replica group, `all_reduce` and `all_gather` span the world, on `REPLICAS` the ranks
    that hold the same shard.

    Raises (all calls):
        RankFailed: another rank ended, failed or did not come within the timeout; the message names rank, stage, batch
            as far as they are known.
    """

    mesh: Mesh

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Rows [n, …] sorted by receiving shard, `send_counts[s]` to shard s; what came, [m, …], sorted by sender,
        `counts[s]` from shard s. Any dtype; the same trailing shape on every rank."""
        ...

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        """The sum of every rank's `flat` (equal shapes), the same bits everywhere; `flat` may be overwritten."""
        ...

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        """[k, …]: `values` (equal shapes) of every rank, by rank."""
        ...

    def fail(self, place: str, error: BaseException) -> None:
        """This rank failed at `place`, e.g. `FORWARD(7)`: tells the others, who then raise RankFailed at once."""
        ...

    def close(self) -> None:
        """Frees groups, threads and ports."""
        ...


class LocalTransport:
    """One rank: what it sends comes back, and its own values are already the sum."""

    mesh = Mesh()

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        return send

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        return flat

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        return torch.unsqueeze(values, 0)

    def fail(self, place: str, error: BaseException) -> None:
        pass

    def close(self) -> None:
        pass
