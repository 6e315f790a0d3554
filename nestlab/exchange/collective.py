"""The transport over torch.distributed: gloo on CPU, NCCL on CUDA. Nothing here waits without end.

Every collective is issued asynchronously and waited for in slices. With gloo (torch 2.13) a wait that times out leaves
the operation as it was, so that one can wait for it again; a thread that waits sleeps in the kernel. A peer that dies
resets its connections, and the wait raises within milliseconds; which rank it was is told by the pulses of
`nestlab.exchange.failure`. After a failure `close` cuts the connections, since gloo has no abort and would keep threads
until the group's own timeout (`nestlab.exchange.sockets`). With NCCL, whose wait with a timeout aborts the group, the
operation is looked at instead; that path has not run on more than one GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from nestlab.errors import RankFailed
from nestlab.exchange.failure import Watch, describe
from nestlab.exchange.meeting import Groups, Ranks, backend_of, joining, make_groups, meet, watch_store
from nestlab.exchange.sockets import Connection
from nestlab.exchange.transport import Channel, Mesh

_SLICE = timedelta(seconds=0.2)
_POLL_S = 2e-4  # between two looks at an operation on CUDA
# gloo moves these kinds alone; the others travel as one of equal width
_AS_ANOTHER = {torch.bool: torch.uint8, torch.bfloat16: torch.float16, torch.int16: torch.float16}


class CollectiveTransport:
    """`Transport` over process groups: one a channel, so that lanes never meet in one group.

    Made by `connect`. Each channel may be used by one thread at a time; channels may be used at once and in any order
    between them.

    Args:
        mesh: where this rank stands.
        groups: those this rank belongs to, by channel and members.
        watch: what it knows of the other ranks; ends with `close`.
        device: where tensors lie.
        timeout_s: seconds after which a collective that does not end raises RankFailed.
    """

    def __init__(self, mesh: Mesh, groups: Groups, watch: Watch, device: torch.device, timeout_s: float) -> None:
        self.mesh = mesh
        self._device = device
        self._groups, self._watch = groups, watch
        self._timeout_s = timeout_s
        self._owns_world = False  # the default process group was made by `connect` and goes with `close`
        self._connections: list[Connection] = []
        self._closed = False
        self._waiting: dict[int, dist.Work] = {}

    @classmethod
    def connect(
        cls,
        replicas: int = 1,
        device: str | torch.device = "cpu",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> CollectiveTransport:
        """Joins the ranks that the environment names.

        Args:
            replicas: groups of ranks that each hold all tables (2D sparse parallelism).
            device: where the tensors lie; gloo on CPU (GLOO_SOCKET_IFNAME chooses the interface), NCCL on CUDA.
            timeout_s: seconds for meeting, and for each collective.
            env: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; os.environ where None. Not looked at where
                torch.distributed has a default process group already.

        Raises:
            UserError: the environment is incomplete, or the port is taken.
            RankFailed: a rank did not come, or ended meanwhile; after `timeout_s`, at most 5 s later.
            ValueError: the replica groups do not divide the ranks.
        """
        device = torch.device(device)
        env = os.environ if env is None else env
        owns_world, limit = not dist.is_initialized(), time.monotonic() + timeout_s
        if owns_world:
            meet(env, backend_of(device), timeout_s, limit)
        try:
            mesh = Mesh(dist.get_rank(), dist.get_world_size(), replicas)
            store, host = watch_store(env)
            with joining(store, mesh.rank, mesh.world_size):
                groups, connections = make_groups(mesh, device, timeout_s, limit)
        except BaseException:
            if owns_world:
                dist.destroy_process_group()
            raise
        watch = Watch(store, mesh.rank, mesh.world_size, host)
        transport = cls(mesh, groups, watch, device, timeout_s)
        transport._owns_world, transport._connections = owns_world, connections
        return transport

    def all_to_all(self, channel: Channel, send: Tensor, send_counts: Sequence[int], counts: Sequence[int]) -> Tensor:
        ranks = self._inside()
        if len(ranks) == 1:
            return send
        send = send.detach().contiguous()
        came = torch.empty((sum(counts), *send.shape[1:]), dtype=send.dtype, device=send.device)
        self._finish(
            channel,
            ranks,
            lambda group: dist.all_to_all_single(
                _wire(came), _wire(send), list(counts), list(send_counts), group=group, async_op=True
            ),
        )
        return came

    def all_reduce(self, channel: Channel, flat: Tensor) -> Tensor:
        ranks = self._across(channel)
        if len(ranks) == 1:
            return flat
        flat = flat.detach().contiguous()
        self._finish(channel, ranks, lambda group: dist.all_reduce(flat, group=group, async_op=True))
        return flat

    def all_gather(self, channel: Channel, values: Tensor) -> Tensor:
        ranks = self._across(channel)
        if len(ranks) == 1:
            return values.unsqueeze(0)
        values = values.detach().contiguous()
        gathered = torch.empty((len(ranks), *values.shape), dtype=values.dtype, device=values.device)
        self._finish(
            channel,
            ranks,
            lambda group: dist.all_gather_single(
                _wire(gathered).view(-1), _wire(values).view(-1), group=group, async_op=True
            ),
        )
        return gathered

    @property
    def failure(self) -> str:
        """What is known of a rank that failed; empty: nothing."""
        return self._watch.failure

    def fail(self, place: str, error: BaseException) -> None:
        self._watch.publish(describe(self.mesh.rank, place, error))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        torn = self._watch.failed or bool(self._waiting)
        self._watch.stop_waiting(f"rank {self.mesh.rank} closed its transport")
        self._watch.leave()
        groups = list(self._groups.values())
        if torn:
            for connection in self._connections:
                connection.cut()
            for group in groups:
                group.abort()  # what NCCL needs
        self._groups.clear()
        if self._owns_world:
            dist.destroy_process_group()
            return
        for group in groups:
            dist.destroy_process_group(group)

    def _inside(self) -> Ranks:
        """The ranks of this replica group."""
        first = self.mesh.replica * self.mesh.shards
        return tuple(range(first, first + self.mesh.shards))

    def _across(self, channel: Channel) -> Ranks:
        mesh = self.mesh
        if channel is Channel.REPLICAS:
            return tuple(range(mesh.shard, mesh.world_size, mesh.shards))
        return tuple(range(mesh.world_size))

    def _finish(self, channel: Channel, ranks: Ranks, issue: Callable[[dist.ProcessGroup], dist.Work]) -> None:
        group = self._groups.get((channel, ranks))
        if group is None:
            raise ValueError(f"{channel.value}: no group of ranks {list(ranks)} for this call")
        self._watch.enter(channel.value)
        try:
            work = issue(group)
        except RuntimeError as error:
            raise self._broken(channel, ranks, error) from error
        self._waiting[id(work)] = work
        try:
            self._wait(work, channel, ranks)
        finally:
            del self._waiting[id(work)]

    def _wait(self, work: dist.Work, channel: Channel, ranks: Ranks) -> None:
        limit = time.monotonic() + self._timeout_s
        try:
            while not self._slice(work):
                self._watch.check()
                if time.monotonic() > limit:
                    raise RankFailed(self._watch.publish(self._overdue(channel, ranks)))
        except RankFailed:
            raise
        except RuntimeError as error:
            raise self._broken(channel, ranks, error) from error

    def _slice(self, work: dist.Work) -> bool:
        """Waits for a moment; whether the operation has ended well. Raises its error, a RuntimeError, if it has not."""
        if self._device.type == "cuda":  # there a wait that times out takes the group with it
            if not work.is_completed():
                time.sleep(_POLL_S)
                return False
        else:
            try:
                return work.wait(_SLICE)
            except RuntimeError:
                if not work.is_completed():
                    return False
        return work.wait(_SLICE)  # at once: it ended

    def _overdue(self, channel: Channel, ranks: Ranks) -> str:
        text = f"no answer within {self._timeout_s:g} s in {channel.name}"
        absent = self._watch.absent(channel.value, ranks)
        return f"{text}; rank(s) {', '.join(map(str, absent))} did not come" if absent else text

    def _broken(self, channel: Channel, ranks: Ranks, error: RuntimeError) -> RankFailed:
        """A connection broke. If its rank failed in good order, its message is on the way: what it says is better."""
        ended = self._watch.ended(ranks)
        try:
            self._watch.check()
        except RankFailed as failed:
            return failed
        if ended:
            names = "; ".join(f"rank {rank} ended" for rank in ended)
            text = f"{names} (noticed in {channel.name} on rank {self.mesh.rank})"
        else:
            text = f"{channel.name} broke on rank {self.mesh.rank}: {str(error).splitlines()[0]}"
        return RankFailed(self._watch.publish(text))


def _wire(tensor: Tensor) -> Tensor:
    kind = _AS_ANOTHER.get(tensor.dtype)
    return tensor if kind is None else tensor.view(kind)
