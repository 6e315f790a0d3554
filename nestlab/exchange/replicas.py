"""Replicas of 2D sparse parallelism: ranks that hold the same shard average what they trained apart.

The idea is that of arXiv 2508.03854 (`DMPCollection.sync` in torchrec averages whole tables); here only rows that some
replica has trained since the last time travel, in their original precision.

Declared inexact: with one synchronisation after every step SGD equals synchronous SGD up to the order of sums, where
each group's gradients are those of its own mean loss and the groups weigh the same. Adagrad and Adam do not: their
states see the squares of each group's gradients, not of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import EmbeddingStore, KeySet
from nestlab.embedding.records import read_records, write_records
from nestlab.embedding.saved import KeyLog
from nestlab.exchange.transport import Channel, Transport

_AT_ONCE = 1 << 16  # rows in one collective: the same on every rank, whatever its memory


class Replicas:
    """The replicas of one rank's tables. With a single replica there is nothing to do, and nothing is remembered.

    All replicas have equal tables, optimizer, seed and dtype, so that a row nobody trained is the same on all.
    """

    def __init__(self, store: EmbeddingStore, transport: Transport) -> None:
        self._store, self._transport = store, transport
        self._count = transport.mesh.replicas
        self._trained = self._nothing()

    def touched(self, owned: Sequence[KeySet]) -> None:
        """These keys, one KeySet a group of tables, were just trained here; the next `sync` brings them together."""
        if self._count > 1:
            for log, keys in zip(self._trained, owned, strict=True):
                log.append(keys)

    def sync(self) -> int:
        """Every key that some replica has trained since the last call gets the mean record, weights and optimizer
        states, on all of them and at every tier; replicas without a row for it get one. The same bits everywhere.

        A collective over the replicas on channel REPLICAS. No batch may be in flight, but for those not yet resolved.
        A key that has lost its row again, or was refused one, is not among those that its replica has trained.

        Returns:
            bytes that this rank sent, to all others together.

        Raises:
            RuntimeError: batches are in flight.
            UserError: a replica has no room for a row that another one has.
            RankFailed: see `Transport`.
        """
        if self._count == 1:
            return 0
        self._store.require_quiet("sync")
        unions, sent = self._unions([self._with_row(number, log) for number, log in enumerate(self._trained)])
        for number, keys in enumerate(unions):
            for first in range(0, len(keys), _AT_ONCE):
                part = keys.take(np.arange(first, min(first + _AT_ONCE, len(keys))))
                sent += self._average(number, part)
        self._trained = self._nothing()
        return sent

    def _nothing(self) -> list[KeyLog]:
        return [KeyLog(len(group.tables)) for group in self._store.groups]

    def _with_row(self, group: int, log: KeyLog) -> KeySet:
        """The keys in a log that have a row, ids ascending in each table."""
        ids = [log.ids(table) for table in range(len(self._store.groups[group].tables))]
        keys = _key_set(ids)
        return keys.take(np.flatnonzero(self._store.hosts[group].find(keys) >= 0))

    def _unions(self, own: Sequence[KeySet]) -> tuple[list[KeySet], int]:
        """The keys that any replica names, a KeySet a group, ids ascending in each table; and the bytes sent."""
        counts = torch.from_numpy(np.concatenate([np.diff(keys.offsets) for keys in own]))
        everyones_counts, sent = self._gather(counts)
        most = int(everyones_counts.sum(dim=1).max())
        if not most:
            return list(own), sent
        ids = torch.zeros(most, dtype=torch.int64)
        ids[: int(counts.sum())] = torch.from_numpy(np.concatenate([keys.ids for keys in own]))
        everyones_ids, more = self._gather(ids)
        rows = zip(everyones_ids.numpy(), everyones_counts.numpy(), strict=True)
        by_replica = [np.split(named, np.cumsum(runs))[:-1] for named, runs in rows]  # the last part is padding
        tables = [np.unique(np.concatenate(parts)) for parts in zip(*by_replica, strict=True)]
        ends = np.cumsum([0, *(len(group.tables) for group in self._store.groups)])
        return [_key_set(tables[a:b]) for a, b in pairwise(ends)], sent + more

    def _average(self, group: int, keys: KeySet) -> int:
        records, sent = self._gather(read_records(self._store, group, keys))
        total = records[0].double()
        for other in records[1:]:  # by rank, so that the sum is the same everywhere
            total += other
        write_records(self._store, group, keys, (total / self._count).to(records.dtype))
        return sent

    def _gather(self, values: Tensor) -> tuple[Tensor, int]:
        """[replicas, …], and the bytes that went to the others."""
        return self._transport.all_gather(Channel.REPLICAS, values), values.nbytes * (self._count - 1)


def _key_set(ids: Sequence[np.ndarray]) -> KeySet:
    """From the ids of each table."""
    return KeySet(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))
