"""Records of a store by id, many at once: what an import writes and an export reads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import EmbeddingStore, KeySet
from nestlab.embedding.config import TableGroup
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.records import write_records
from nestlab.embedding.sharding import owner
from nestlab.errors import UserError
from nestlab.exchange import Mesh
from nestlab.host import memory_bytes

_CHUNK_BYTES = 1 << 20  # of records written at once; over a disk tier, no more than host memory holds


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

    An id that would get what it has anyway is left alone, so that a table that was mostly untouched stays small. No
    batch may be in flight.
    """
    group, _ = locate(store, table)
    if weight is None and (state is None or not state.shape[1]):
        return
    store.flush()
    size = len(weight) if weight is not None else len(state)
    memory = store.hosts[group.number].memory
    step = max(1, min(len(memory.array), _CHUNK_BYTES // memory.record_bytes))
    for first in range(0, size, step):
        span = slice(first, min(first + step, size))
        parts = [None if t is None else t[span].detach().to("cpu", store.dtype) for t in (weight, state)]
        _write(store, table, np.arange(span.start, span.stop), *parts)


def _write(store: EmbeddingStore, table: str, ids: np.ndarray, weight: Tensor | None, state: Tensor | None) -> None:
    group, number = locate(store, table)
    host = store.hosts[group.number]
    rows = host.find(_keys(group, number, ids))
    records = _now(store, host, table, ids, rows)
    before = records.clone()
    for values, columns in ((weight, slice(0, group.dim)), (state, slice(group.dim, None))):
        if values is not None:
            records[:, columns] = values
    # With admission every id counts as changed: without a row it would read the constant now, and be drawn anew later.
    changed = (records.view(torch.uint8) != before.view(torch.uint8)).any(dim=1).numpy() | (host.admission is not None)
    write_records(store, group.number, _keys(group, number, ids[changed]), records[torch.from_numpy(changed)])


def _now(store: EmbeddingStore, host: HostTier, table: str, ids: np.ndarray, rows: np.ndarray) -> Tensor:
    """[n, width]: the record of each id, initial values where it has no row."""
    records = torch.full((ids.size, host.group.record_width), float(store.optimizer.initial_state), dtype=store.dtype)
    records[:, : host.group.dim] = store.full_weight(table, ids)
    known = np.flatnonzero(rows >= 0)
    records[torch.from_numpy(known)] = host.records(rows[known])
    return records


def _keys(group: TableGroup, number: int, ids: np.ndarray) -> KeySet:
    offsets = np.zeros(len(group.tables) + 1, dtype=np.int64)
    offsets[number + 1 :] = ids.size
    return KeySet(ids, offsets)


def _refuse_too_large(store: EmbeddingStore, table: str, size: int, width: int) -> None:
    needed, there = 2 * size * width * store.dtype.itemsize, memory_bytes()
    if needed > there:
        raise UserError(
            f"table '{table}': torchrec's state dict has all {size:,} rows at once, {needed:,} bytes with a copy, "
            f"and there are {there:,}; use nestlab.embedding.checkpoint.save(module.store, folder)"
        )


def keep_own(store: EmbeddingStore, mesh: Mesh) -> None:
    """Drops the rows of other shards' keys. No batch may be in flight.

    Raises:
        RuntimeError: one is.
    """
    for group, host, tier in zip(store.groups, store.hosts, store.tiers, strict=True):
        for number, table in enumerate(group.tables):
            ids = store.export(table.name)["ids"].numpy()
            others = ids[owner(ids, table.name, mesh.shards) != mesh.shard]
            offsets = np.where(np.arange(len(group.tables) + 1) > number, others.size, 0)
            keys = KeySet(others, offsets)
            tier.forget(host.index.find(keys))
            host.drop(keys)
