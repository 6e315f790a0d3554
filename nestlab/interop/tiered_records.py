"""Records of a store by id, many at once: what an import writes and an export reads."""

from __future__ import annotations


import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import EmbeddingStore, KeySet
from nestlab.embedding.config import TableGroup
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.residency import GroupResidency
from nestlab.errors import UserError
from nestlab.host import memory_bytes

_CHUNK_BYTES = 1 << 20  # of records written at once: they are pinned together, which a small host tier must bear


def locate(store: EmbeddingStore, table: str) -> tuple[TableGroup, int]:
    """The group of a table and its number there."""
    for group in store.groups:
        for number, config in enumerate(group.tables):
            if config.name == table:
                return group, number
    raise UserError(f"no table is called '{table}'")


def read(store: EmbeddingStore, table: str, size: int) -> tuple[Tensor, Tensor]:
    """weight [size, dim] and state [size, s] of ids 0 … size − 1; initial values where an id was never trained.

    Raises:
        UserError: an id lies outside, or so many rows cannot lie in memory at once.
    """
    group, _ = locate(store, table)
    _refuse_too_large(store, table, size, group.record_width)
    known = store.export(table)
    ids = known["ids"]
    if outside := int(((ids < 0) | (ids >= size)).sum()):
        worst = int(ids[-1] if ids[-1] >= size else ids[0])
        raise UserError(
            f"table '{table}': {outside:,} trained ids lie outside 0 … {size - 1:,}, {worst:,} among them, and have no "
            "place in torchrec's weight; raise num_embeddings, or map ids first"
        )
    weight = store.full_weight(table, np.arange(size))
    state = torch.full((size, group.state_width), store.optimizer.initial_state, dtype=store.dtype)
    state[ids] = known["state"]
    return weight, state


def write(store: EmbeddingStore, table: str, weight: Tensor | None, state: Tensor | None) -> None:
    """Makes weight [n, dim] and state [n, s] those of ids 0 … n − 1; None leaves what there is.

    An id without a row that would get what it reads anyway stays without: a table that was mostly untouched stays small.
    No batch may be in flight.
    """
    group, _ = locate(store, table)
    if weight is None and (state is None or not state.shape[1]):
        return
    store.flush()
    size = len(weight) if weight is not None else len(state)
    step = max(1, _CHUNK_BYTES // (group.record_width * store.dtype.itemsize))
    for first in range(0, size, step):
        span = slice(first, min(first + step, size))
        parts = [None if t is None else t[span].detach().to("cpu", store.dtype) for t in (weight, state)]
        _write(store, table, np.arange(span.start, span.stop), *parts)


def _write(store: EmbeddingStore, table: str, ids: np.ndarray, weight: Tensor | None, state: Tensor | None) -> None:
    group, number = locate(store, table)
    host, tier = store.hosts[group.number], store.tiers[group.number]
    new = host.find(_keys(group, number, ids)) < 0
    chosen = np.flatnonzero(~new | _differs(store, host, table, ids, weight, state))
    keys = _keys(group, number, ids[chosen])
    rows, fresh = host.index.find_or_insert(keys, host.rows)
    if host.admission:
        host.admission.forget(keys)
    host.rows.seen(rows, store.counters.batches)
    tier.forget(rows)  # flushed before: what it holds of them is void from here on
    frames = host.pin(GroupResidency(keys, rows, fresh, store.counters.batches, True), slice(None))
    records = host.memory.array
    for values, columns in ((weight, slice(0, group.dim)), (state, slice(group.dim, None))):
        if values is not None:
            records[frames, columns] = values.numpy()[chosen]
    host.memory.unpin(frames, changed=True)


def _differs(store, host: HostTier, table: str, ids: np.ndarray, weight: Tensor | None, state: Tensor | None):
    """[n] bool: which ids, if they had no row, would not read this. With admission all: later rows are drawn anew."""
    differs = np.full(ids.size, host.admission is not None)
    if weight is not None:
        differs |= (store.full_weight(table, ids) != weight).any(dim=1).numpy()
    if state is not None:
        differs |= (state != store.optimizer.initial_state).any(dim=1).numpy()
    return differs


def _keys(group: TableGroup, number: int, ids: np.ndarray) -> KeySet:
    offsets = np.zeros(len(group.tables) + 1, dtype=np.int64)
    offsets[number + 1 :] = ids.size
    return KeySet(ids, offsets)


def _refuse_too_large(store: EmbeddingStore, table: str, size: int, width: int) -> None:
    needed, there = 2 * size * width * store.dtype.itemsize, memory_bytes()
    if needed > there:
        raise UserError(
            f"table '{table}': torchrec's state dict holds all {size:,} rows at once, {needed:,} bytes with a copy, and "
            f"there are {there:,}; save the store itself"
        )
