"""How ranks find each other: the default process group from the usual environment variables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist

from nestlab.errors import RankFailed, UserError
from nestlab.exchange.sockets import Connection, connections
from nestlab.exchange.transport import Channel, Mesh
from nestlab.launch.environment import REMEDY, Place, environment, launcher_serves_store

_LOOK_S = 0.01  # between two looks at the store
_TELL_S = 1.0  # how long a rank that failed waits for what others say
_MAKE_S = 3.0  # for groups of ranks that met in the last moment
_GRACE_S = 5.0  # torch's own timeouts come after ours, whose messages say more

Ranks = tuple[int, ...]
Groups = dict[tuple[Channel, Ranks], dist.ProcessGroup]


def meet(env: Mapping[str, str], backend: str, timeout_s: float, limit: float) -> None:
    """Waits for all ranks, then makes the default process group.

    Raises:
        UserError: the environment is incomplete, or the port is taken.
        RankFailed: rank 0 cannot be reached, or a rank did not come by `limit`, `timeout_s` after the begin; or it
            ended meanwhile: up to 5 s later.
    """
    place = environment(env)
    if place is None:
        raise UserError(f"environment: RANK and WORLD_SIZE are not set; {REMEDY}")
    store = _meeting_store(place, timeout_s, limit)
    left = _left(limit)
    with joining(store, place.rank, place.world_size):
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=left)


@contextmanager
def joining(store: dist.Store, rank: int, world_size: int) -> Iterator[None]:
    """Around what all ranks do together after they have met: an error names those that ended or hang meanwhile.

    Raises:
        RankFailed: a group could not be made.
    """
    step = store.add(f"joining/{rank}", 1)
    try:
        yield
    except RuntimeError as error:
        if not dist.is_initialized():
            dist.distributed_c10d._world.group_count = 0  # else the names of later groups differ from other ranks'
        line = str(error).splitlines()[0]
        silent = _silent(store, step, rank, world_size)
        names = f"; rank(s) {', '.join(map(str, silent))} did not come" if silent else ""
        raise RankFailed(f"connecting broke on rank {rank}: {line}{names}") from error
    store.set(f"through/{step}/{rank}", "")


def watch_store(env: Mapping[str, str]) -> tuple[dist.Store, int | None]:
    """A connection of its own to the default group's store, and the rank that serves it (None: the launcher)."""
    store = dist.distributed_c10d._get_default_store()
    name = f"watch/{_count(store)}"
    return dist.PrefixStore(name, store.clone()), None if launcher_serves_store(env) else 0


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def make_groups(mesh: Mesh, device: torch.device, timeout_s: float, limit: float) -> tuple[Groups, list[Connection]]:
    """The groups this rank belongs to, by channel and members, and gloo's connections in them.

    Every rank makes all groups, in this order. `timeout_s` is of what is done in them; they are to be made by `limit`.
    """
    shards, world = mesh.shards, mesh.world_size
    copies = [tuple(range(first, first + shards)) for first in range(0, world, shards)]
    peers = [tuple(range(shard, world, shards)) for shard in range(shards)]
    everyone = [tuple(range(world))]
    wanted = [(channel, copies) for channel in (Channel.KEYS, Channel.ROWS, Channel.TABLES)]
    wanted += [(Channel.DENSE, everyone), (Channel.REPLICAS, peers)]
    if mesh.replicas > 1:
        wanted.append((Channel.KEYS, everyone))
    timeout = timedelta(seconds=timeout_s + _GRACE_S)
    made, opened = {}, []
    for channel, members in wanted:
        for ranks in members:
            if len(ranks) == 1:
                continue
            before = connections()
            group = dist.new_group(list(ranks), timeout=_left(limit), backend=backend_of(device))
            if mesh.rank in ranks:
                dist.distributed_c10d._set_pg_timeout(timeout, group)
                made[channel, ranks] = group
                fresh = connections() - before
                if len(fresh) == len(ranks) - 1:  # otherwise another thread's may be among them
                    opened.extend(sorted(fresh, key=lambda connection: connection.number))
    return made, opened


def _count(store: dist.Store) -> int:
    """How many transports were made on this store before, the same on every rank: each rank counts for itself."""
    return store.add(f"transports/{dist.get_rank()}", 1)


def _left(limit: float) -> timedelta:
    return timedelta(seconds=max(limit - time.monotonic(), 0.0) + _MAKE_S)


def _meeting_store(place: Place, timeout_s: float, limit: float) -> dist.Store:
    """Keys of this meeting alone, once all ranks are there: a process may meet others more than once."""
    while True:
        store = _open_store(place, timeout_s, limit)
        try:
            return dist.PrefixStore(f"meeting/{_await_all(store, place, timeout_s, limit)}", store)
        except dist.DistError as error:  # rank 0 took down the store of the meeting before
            if time.monotonic() > limit:
                raise _no_answer(place, timeout_s) from error
            time.sleep(_LOOK_S)


def _open_store(place: Place, timeout_s: float, limit: float) -> dist.Store:
    serves = place.rank == 0 and not place.store_of_launcher
    try:
        store = dist.TCPStore(
            place.master_addr,
            place.master_port,
            place.world_size,
            serves,
            timedelta(seconds=max(limit - time.monotonic(), _LOOK_S)),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        where = f"{place.master_addr}:{place.master_port}"
        line = str(error).splitlines()[0]
        if serves:
            raise UserError(f"MASTER_PORT: rank 0 cannot listen on {where}: choose a free port ({line})") from error
        raise _no_answer(place, timeout_s) from error
    return dist.PrefixStore(f"attempt/{place.attempt}", store)


def _no_answer(place: Place, timeout_s: float) -> RankFailed:
    where = f"{place.master_addr}:{place.master_port}"
    return RankFailed(f"rank {place.rank}: no answer from rank 0 at {where} within {timeout_s:g} s")


def _await_all(store: dist.Store, place: Place, timeout_s: float, limit: float) -> str:
    """The name of a meeting of all ranks; says who is missing, which torch's own waiting does not.

    Each rank shows a token that is new for every attempt. Rank 0 waits for one of each that no meeting had before, and
    writes down whom it met; the others wait to stand there. So neither a meeting before nor an attempt that failed, on
    however many ranks, is taken for this one.
    """
    own, rank = uuid4().hex, place.rank
    store.set(f"token/{rank}", own)
    try:
        while True:
            tokens = [_read(store, f"token/{each}") for each in range(place.world_size)]
            met = _read(store, "met").split()
            if rank != 0 and own in met:
                return met[0]
            missing = [each for each, token in enumerate(tokens) if not token or token in met]
            if rank == 0 and not missing:
                store.set("met", " ".join(tokens))
                return own
            if time.monotonic() > limit:
                names = ", ".join(map(str, missing or [0]))
                raise RankFailed(f"no answer within {timeout_s:g} s while connecting; rank(s) {names} did not come")
            time.sleep(_LOOK_S)
    except BaseException:
        with suppress(dist.DistError):
            store.set(f"token/{rank}", "")  # nobody shall meet one who has left
        raise


def _read(store: dist.Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _silent(store: dist.Store, step: int, rank: int, world_size: int) -> list[int]:
    """Ranks that are not through with the step, well or badly, a moment after this one."""
    silent = [each for each in range(world_size) if each != rank]
    limit = time.monotonic() + _TELL_S
    try:
        store.set(f"through/{step}/{rank}", "")
        while (silent := [r for r in silent if not store.check([f"through/{step}/{r}"])]) and time.monotonic() < limit:
            time.sleep(_LOOK_S)
    except RuntimeError:  # the store went with rank 0
        return [0]
    return silent
