"""Whole tables on their way to another owner, with all they have learnt; and what they cost, told to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from nestlab.batching.placement import Placement
from nestlab.errors import UserError
from nestlab.exchange.table_wise import require_one_replica
from nestlab.exchange.transport import Channel, Transport

State = Sequence[Tensor | np.ndarray]


def move_tables(
    transport: Transport, states: Sequence[State], old: Placement, new: Placement
) -> dict[int, list[Tensor]]:
    """Sends the state of each table that has another owner in `new` there: the same bits, weights and optimizer state.

    A collective on channel KEYS, at a step boundary with nothing in flight; all ranks give the same placements. Each
    rank sends at most one table at a time, so that memory for one is enough on the way out.

    Args:
        states: [T] the record arrays of each table, e.g. `Cores.records`. Of a table that this rank does not own only
            their shapes and dtypes are read, which are those of the owner's: tensors on device `meta` will do.

    Returns:
        by table, what has come to this rank; new tensors, on the CPU or where `states` has them. Those that left may
        be dropped. Empty on one rank.

    Raises:
        UserError: replica groups; placements of other tables or ranks.
        RankFailed: see `Transport`.
    """
    mesh = transport.mesh
    require_one_replica(mesh)
    for placement in (old, new):
        placement.check(mesh.world_size)
        if placement.tables != len(states):
            raise UserError(f"placement: owners of {placement.tables} tables, but there are {len(states)}")
    came: dict[int, list[Tensor]] = {}
    for leaving in _rounds(old, new, mesh.world_size):
        going, coming = [0] * mesh.world_size, [0] * mesh.world_size
        mine, own = leaving[mesh.rank], torch.empty(0, dtype=torch.uint8)
        if mine is not None:
            own = _bytes(states[mine])
            going[new.owner[mine]] = own.numel()
        arriving = [(rank, t) for rank, t in enumerate(leaving) if t is not None and new.owner[t] == mesh.rank]
        for rank, table in arriving:
            coming[rank] = sum(_like(each).nbytes for each in states[table])
        flat = transport.all_to_all(Channel.KEYS, own, going, coming)
        for (_, table), piece in zip(arriving, flat.split([coming[rank] for rank, _ in arriving]), strict=True):
            came[table] = _unpacked(piece, states[table])
    return came


def share_costs(transport: Transport, costs: Sequence[float], owner: Sequence[int]) -> tuple[float, ...]:
    """[T] what each table cost, as its owner measured it, on every rank the same bits: what `Drift.measure` asks for.

    A collective on channel KEYS. Of `costs` [T] the entries of this rank's tables count.
    """
    told = transport.all_gather(Channel.KEYS, torch.tensor(costs, dtype=torch.float64)).cpu()
    return tuple(float(told[rank, table]) for table, rank in enumerate(owner))


def _rounds(old: Placement, new: Placement, ranks: int) -> list[tuple[int | None, ...]]:
    """What each rank sends in each round, [rounds][W]: one table, or None."""
    moved = [t for t in range(old.tables) if old.owner[t] != new.owner[t]]
    return list(zip_longest(*([t for t in moved if old.owner[t] == rank] for rank in range(ranks))))


def _like(array: Tensor | np.ndarray) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _bytes(state: State) -> Tensor:
    """[n] uint8, in host memory: all arrays, one behind the other."""
    return torch.cat([_like(each).detach().cpu().contiguous().view(-1).view(torch.uint8) for each in state])


def _unpacked(flat: Tensor, state: State) -> list[Tensor]:
    """The arrays in a run of bytes, each in memory of its own: what came with it is not kept alive."""
    likes = [_like(each) for each in state]
    pieces = flat.split([like.nbytes for like in likes])
    arrays = [piece.clone().view(like.dtype).view(like.shape) for piece, like in zip(pieces, likes, strict=True)]
    return [a if like.device.type == "meta" else a.to(like.device) for a, like in zip(arrays, likes, strict=True)]
