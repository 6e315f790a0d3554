"""What a rank asks of the owners of its batch's keys, and how its ids map onto what will come: no communication."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import GroupKeys, KeySet
from nestlab.embedding.config import TableGroup
from nestlab.embedding.sharding import owner
from nestlab.exchange import routing_kernels
from nestlab.exchange.key_messages import Entries


@dataclass(frozen=True, eq=False)
class Request:
    """The unique keys of a rank's batch for one group, owner by owner. S shards, T tables, N micro-batches.

    Attributes:
        keys: in the order of `route`.
        entries: the same keys owner-major, table-major within an owner, in order of first appearance within a table.
        wanted: [S, T] int64, keys of each owner and table.
        parts: [N] positions into each micro-batch's list: the entries that it uses, in their order.
        counts: [N, S] int64, the length of those lists, owner by owner.
    """

    keys: KeySet
    entries: Entries
    wanted: np.ndarray
    parts: tuple[GroupKeys, ...]
    counts: np.ndarray

    def by_owner(self) -> list[Entries]:
        """[S] the entries of each owner."""
        return self.entries.split(self.wanted.sum(axis=1).tolist())


def request(routed: GroupKeys, size: int, parts: int, shards: int) -> Request:
    """Sorts a group's keys by owner and splits its ids by micro-batch. `routed` is used up: its positions change.

    Args:
        size: samples of the batch, B.
    """
    keys = routed.keys
    wanted, entries = np.diff(keys.offsets)[None], Entries(keys.ids, None, keys.counts, keys.clicks)
    if shards > 1:
        wanted, places = _order(routed.group, keys, shards)
        entries = _moved(entries, places)
        routing_kernels.follow(routed.positions.numpy(), places)
    if parts == 1:
        return Request(keys, entries, wanted, (routed,), wanted.sum(axis=1)[None])
    masks, split, counts = _split(routed, size, parts, wanted.sum(axis=1))
    return Request(keys, replace(entries, masks=masks), wanted, split, counts)


def _order(group: TableGroup, keys: KeySet, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys of each owner and table [S, T], and the place of each key when sorted by owner [U]."""
    owners, ends = np.empty(len(keys), np.int64), keys.offsets.tolist()
    for table, begin, end in zip(group.tables, ends[:-1], ends[1:], strict=True):
        owners[begin:end] = owner(keys.ids[begin:end], table.name, shards)
    wanted, places = np.zeros((shards, len(group.tables)), np.int64), np.empty(len(keys), np.int64)
    routing_kernels.order_by_owner(owners, keys.offsets, wanted, places)
    return wanted, places


def _moved(entries: Entries, places: np.ndarray) -> Entries:
    def move(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        moved = np.empty_like(values)
        routing_kernels.put(values, places, moved)
        return moved

    return Entries(move(entries.ids), None, move(entries.counts), move(entries.clicks))


def _split(routed: GroupKeys, size: int, parts: int, by_owner: np.ndarray):
    """Masks [U] uint64, the micro-batches' GroupKeys, and the lengths of their lists [N, S]."""
    lengths, positions = routed.lengths.view(len(routed.features), size), routed.positions.numpy()
    bounds = np.array([i * size // parts for i in range(parts + 1)], dtype=np.int64)
    masks, cells = np.zeros(len(routed.keys), np.uint64), np.empty((len(routed.features), parts), np.int64)
    routing_kernels.mark_parts(positions, lengths.numpy(), bounds, masks, cells)
    into, counts = np.empty_like(positions), np.empty((parts, by_owner.size), np.int64)
    routing_kernels.split_positions(positions, cells, masks, np.cumsum(by_owner), into, counts)
    sizes, weights = cells.sum(axis=0).tolist(), _split_weights(routed.id_weights, cells)
    split = tuple(
        replace(routed, positions=part, lengths=lengths[:, begin:end].reshape(-1), id_weights=part_weights)
        for part, begin, end, part_weights in zip(
            torch.from_numpy(into).split(sizes), bounds[:-1].tolist(), bounds[1:].tolist(), weights, strict=True
        )
    )
    return masks, split, counts


def _split_weights(weights: Tensor | None, cells: np.ndarray) -> list[Tensor | None]:
    """Weights [nnz], feature-major, of each micro-batch; cells [F, N] are the ids of each."""
    parts = cells.shape[1]
    if weights is None:
        return [None] * parts
    runs = weights.split(cells.reshape(-1).tolist())
    return [torch.cat(runs[part::parts]) for part in range(parts)]
