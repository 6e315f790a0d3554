"""What is written of a store, piece by piece: records stream, so that no table is ever in memory as a whole.

Roles, and the arrays in a file of each:

* `rows`: ids [n] int64 ascending, weight [n, dim], state [n, s] of the records' dtype, last_seen [n] int32 (the number
  of the last training batch that used the key). In an increment: of the keys used since the save before.
* `removed`, in increments alone: ids [n] int64 of the keys evicted since the save before that have not come back.
* `scores`, where rows are evicted by score: ids [n] int64, shows, clicks, scores [n] float64, of every key in every
  save, since scores decay unseen.
* `admission`, where it is on: what is counted of keys without a row (`nestlab.embedding.features`), of all tables that
  share an address space: as it is, in every save.

The order is table by table, ids ascending: equal stores write equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nestlab.embedding.checkpoint.manifest import Role
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.store import EmbeddingStore

PART_BYTES = 16 << 20  # of records; up to four copies of them are in memory at once
_KEYS_A_PART = 1 << 20  # where there are no records


@dataclass(frozen=True, eq=False)
class Piece:
    """What becomes one file: arrays by name, and how many keys they are of."""

    role: Role
    tables: tuple[str, ...]
    rows: int
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of one group, by (table, id): ids [n] int64, offsets [T+1] int64, rows [n] int64."""

    ids: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray

    def table(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and rows of one table."""
        run = slice(self.offsets[number], self.offsets[number + 1])
        return self.ids[run], self.rows[run]


def keys_of(host: HostTier, since: int = -1) -> Keys:
    """The keys last used after training batch `since`. Unlike records, keys are in memory all at once."""
    ids, tables, rows = host.index.flagged(host.rows.last_seen[: host.rows.ever] > since)
    return Keys(ids, np.searchsorted(tables, np.arange(len(host.group.tables) + 1)), rows)


def pieces(store: EmbeddingStore, since: int | None) -> Iterator[Piece]:
    """All that a save consists of. The device tier must be flushed.

    Args:
        since: count of batches at the save before; None for a full save.
    """
    for host in store.hosts:
        yield from _row_pieces(host, keys_of(host, -1 if since is None else since))
        if since is not None:
            yield from _removed_pieces(host)
        if host.eviction is not None and host.eviction.stats is not None:
            yield from _score_pieces(host, keys_of(host))
        if host.admission is not None:
            names = tuple(table.name for table in host.group.tables)
            state = host.admission.state()
            yield Piece("admission", names, state["ids"].size if "ids" in state else 0, state)


def _row_pieces(host: HostTier, keys: Keys) -> Iterator[Piece]:
    dim = host.group.dim
    for name, ids, rows in _runs(host, keys, max(1, PART_BYTES // host.memory.record_bytes)):
        records = host.records(rows).numpy()
        arrays = {"weight": records[:, :dim], "state": records[:, dim:], "last_seen": host.rows.last_seen[rows]}
        yield Piece("rows", (name,), ids.size, {"ids": ids, **arrays})


def _score_pieces(host: HostTier, keys: Keys) -> Iterator[Piece]:
    for name, ids, rows in _runs(host, keys, _KEYS_A_PART):
        yield Piece("scores", (name,), ids.size, {"ids": ids, **host.eviction.stats.state(rows)})


def _removed_pieces(host: HostTier) -> Iterator[Piece]:
    """A key that came back is among the rows, with its new record: there is nothing to remove."""
    removed = [host.removed.ids(number) for number in range(len(host.group.tables))]
    offsets = np.cumsum([0, *map(len, removed)])
    ids = np.concatenate(removed)
    gone = host.index.find(KeySet(ids, offsets)) < 0
    ends = np.concatenate(([0], np.cumsum(gone)))[offsets]
    for name, part, _ in _runs(host, Keys(ids[gone], ends, ids[gone]), _KEYS_A_PART):
        yield Piece("removed", (name,), part.size, {"ids": part})


def _runs(host: HostTier, keys: Keys, most: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name of the table, ids and rows, at most `most` of them at a time."""
    for number, table in enumerate(host.group.tables):
        ids, rows = keys.table(number)
        for begin in range(0, ids.size, most):
            yield table.name, ids[begin : begin + most], rows[begin : begin + most]
