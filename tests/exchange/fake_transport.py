"""Ranks as threads of one process: a transport that copies what the others deposited, and checks that they agree."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nestlab.exchange import Channel, Mesh


class FakeWorld:
    """`world_size` ranks in `replicas` groups; `run` gives each a thread. For one `run` at a time."""

    def __init__(self, world_size: int, replicas: int = 1) -> None:
        self.meshes = [Mesh(rank, world_size, replicas) for rank in range(world_size)]
        self._boards: dict[tuple, _Board] = {}
        self._lock = threading.Lock()

    def board(self, key: tuple, members: int) -> _Board:
        with self._lock:
            return self._boards.setdefault(key, _Board(members))

    def run(self, work: Callable[[FakeTransport], Any]) -> list[Any]:
        """What `work` returns on each rank; the first error of a rank is raised once all have ended."""
        transports = [FakeTransport(self, mesh) for mesh in self.meshes]
        results: list[Any] = [None] * len(transports)
        errors: list[BaseException | None] = [None] * len(transports)

        def rank(number: int) -> None:
            try:
                results[number] = work(transports[number])
            except BaseException as error:
                errors[number] = error
                for board in list(self._boards.values()):
                    board.barrier.abort()

        threads = [threading.Thread(target=rank, args=(i,)) for i in range(len(transports))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raised = [error for error in errors if error is not None]
        if raised:
            raise next((e for e in raised if not isinstance(e, threading.BrokenBarrierError)), raised[0])
        return results


class _Board:
    """Where the members of a group deposit what they send, and read once all have."""

    def __init__(self, members: int) -> None:
        self.barrier = threading.Barrier(members, timeout=30)
        self.deposits: list[Any] = [None] * members

    def meet(self, member: int, deposit: Any) -> list[Any]:
        self.deposits[member] = deposit
        self.barrier.wait()
        deposits = list(self.deposits)
        self.barrier.wait()  # nobody deposits again before all have read
        return deposits


class FakeTransport:
    """One rank. `calls` counts its collectives by (channel, kind)."""

    def __init__(self, world: FakeWorld, mesh: Mesh) -> None:
        self.mesh = mesh
        self.calls: Counter[tuple[str, str]] = Counter()
        self._world = world

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        self.calls[channel, "all_to_all"] += 1
        mesh = self.mesh
        assert len(send_counts) == len(counts) == mesh.shards and sum(send_counts) == send.shape[0]
        board = self._world.board((channel, "shards", mesh.replica), mesh.shards)
        came = [pieces[mesh.shard] for pieces in board.meet(mesh.shard, send.clone().split(list(send_counts)))]
        assert [piece.shape[0] for piece in came] == list(counts)
        return torch.cat(came)

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        self.calls[channel, "all_gather"] += 1
        mesh = self.mesh
        if channel == Channel.REPLICAS:
            board = self._world.board((channel, "replicas", mesh.shard), mesh.replicas)
            return torch.stack(board.meet(mesh.replica, values.clone()))
        board = self._world.board((channel, "world"), mesh.world_size)
        return torch.stack(board.meet(mesh.rank, values.clone()))

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        return self.all_gather(channel, flat).sum(dim=0)

    def fail(self, place: str, error: BaseException) -> None:
        raise AssertionError(f"{place}: {error}")

    def close(self) -> None:
        pass
