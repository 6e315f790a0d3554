"""How ranks find each other: the default process group from the usual environment variables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from nestlab.errors import RankFailed, UserError
from nestlab.exchange.sockets import Connection, connections
from nestlab.exchange.transport import Channel, Mesh
from nestlab.launch.environment import REMEDY, Place, environment, launcher_serves_store

_GRACE_S = 5.0  # torch's own timeouts come after ours, whose messages say more

Ranks = tuple[int, ...]
Groups = dict[tuple[Channel, Ranks], dist.ProcessGroup]


def meet(env: Mapping[str, str], backend: str, timeout_s: float) -> None:
    """Waits for all ranks, then makes the default process group.

    Raises:
        UserError: the environment is incomplete, or the port is taken.
        RankFailed: rank 0 cannot be reached, or a rank did not come within `timeout_s`.
    """
    place = environment(env)
    if place is None:
        raise UserError(f"environment: RANK and WORLD_SIZE are not set; {REMEDY}")
    store = _open_store(place, timeout_s)
    _await_all(dist.PrefixStore("meeting", store), place, timeout_s)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout_s + _GRACE_S),
    )


def watch_store(env: Mapping[str, str]) -> tuple[dist.Store, int | None]:
    """A connection of its own to the default group's store, and the rank that serves it (None: the launcher)."""
    store = dist.distributed_c10d._get_default_store()
    name = f"watch/{_count(store)}"
    return dist.PrefixStore(name, store.clone()), None if launcher_serves_store(env) else 0


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def make_groups(mesh: Mesh, device: torch.device, timeout_s: float) -> tuple[Groups, list[Connection]]:
    """The groups this rank belongs to, by channel and members, and gloo's connections in them.

    Every rank makes all groups, in this order.
    """
    shards, world = mesh.shards, mesh.world_size
    copies = [tuple(range(first, first + shards)) for first in range(0, world, shards)]
    peers = [tuple(range(shard, world, shards)) for shard in range(shards)]
    everyone = [tuple(range(world))]
    wanted = [(Channel.KEYS, copies), (Channel.ROWS, copies), (Channel.DENSE, everyone), (Channel.REPLICAS, peers)]
    if mesh.replicas > 1:
        wanted.append((Channel.KEYS, everyone))
    timeout = timedelta(seconds=timeout_s + _GRACE_S)
    made, opened = {}, []
    for channel, members in wanted:
        for ranks in members:
            if len(ranks) == 1:
                continue
            before = connections()
            group = dist.new_group(list(ranks), timeout=timeout, backend=backend_of(device))
            if mesh.rank in ranks:
                made[channel, ranks] = group
                fresh = connections() - before
                if len(fresh) == len(ranks) - 1:  # otherwise another thread's may be among them
                    opened.extend(sorted(fresh, key=lambda connection: connection.number))
    return made, opened


def _count(store: dist.Store) -> int:
    """How many transports were made on this store before, the same on every rank: each rank counts for itself."""
    return store.add(f"transports/{dist.get_rank()}", 1)


def _open_store(place: Place, timeout_s: float) -> dist.Store:
    serves = place.rank == 0 and not place.store_of_launcher
    try:
        store = dist.TCPStore(
            place.master_addr,
            place.master_port,
            place.world_size,
            serves,
            timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        where = f"{place.master_addr}:{place.master_port}"
        line = str(error).splitlines()[0]
        if serves:
            raise UserError(f"MASTER_PORT: rank 0 cannot listen on {where}: choose a free port ({line})") from error
        raise RankFailed(f"rank {place.rank}: no answer from rank 0 at {where} within {timeout_s:g} s") from error
    return dist.PrefixStore(f"attempt/{place.attempt}", store)


def _await_all(store: dist.Store, place: Place, timeout_s: float) -> None:
    """Says who is missing, which torch's own waiting does not."""
    store.set(str(place.rank), "here")
    missing = list(range(place.world_size))
    limit = time.monotonic() + timeout_s
    while missing := [rank for rank in missing if not store.check([str(rank)])]:
        if time.monotonic() > limit:
            names = ", ".join(map(str, missing))
            raise RankFailed(f"no answer within {timeout_s:g} s while connecting; rank(s) {names} did not come")
        time.sleep(0.01)
