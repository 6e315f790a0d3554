"""The host tier of one group: key index, rows, the memory of their records, and initial values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.buckets import BucketedIndex
from nestlab.embedding.config import TableGroup
from nestlab.embedding.features.admission import admission
from nestlab.embedding.features.eviction import eviction
from nestlab.embedding.host.arena import Arena
from nestlab.embedding.host.memory import RecordMemory
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.record_file import RecordFile
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.embedding.initialisation import Initialiser
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.residency import GroupResidency
from nestlab.embedding.saved import KeyLog
from nestlab.embedding.tiers import Tiers
from nestlab.errors import UserError

_NONE = np.empty(0, dtype=np.int64)


class HostTier:
    """Records of one group below the device tier, found by key.

    Every row has its record here or, with a disk tier, in the file below (the tier is inclusive): device tiers above
    hold copies.
    """

    def __init__(self, group: TableGroup, initialiser: Initialiser, memory: RecordMemory, options: Tiers) -> None:
        self.group, self.memory = group, memory
        self.index = make_index(group, options)
        self.rows = Rows(memory.row_capacity, memory.record_bytes, _remedy(options))
        self._initialiser, self._rules = initialiser, options.features
        self.admission = admission(options.features, group.tables)
        self.eviction = eviction(options.features, group.tables, memory.row_capacity)
        self.removed: KeyLog | None = None  # since the last checkpoint; None: nobody asks
        self._defaults = options.features.defaults(group.tables)

    def find(self, keys: KeySet) -> np.ndarray:
        """[U] int64 rows, −1 for unknown keys. Changes nothing."""
        return self.index.find(keys)

    def resolve(self, keys: KeySet, number: int, oldest: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [U] int64 of the keys of training batch `number`, and the positions [n] of those that are new.

        New rows have no record before `pin`; a key that admission refuses has row −1.

        Args:
            oldest: number of the oldest batch in flight.

        Raises:
            ValueError: the keys carry no counts, and the rules need them.
            UserError: no room for the new keys' records.
        """
        if self._rules.counts and keys.counts is None:
            raise ValueError("admission and eviction by score need counts; route the batch with count=True")
        if (freed := self.rows.leave_quarantine(number, oldest)).size:
            self.memory.free(freed)
        rows, fresh = self._admit(keys, number) if self.admission else self.index.find_or_insert(keys, self.rows)
        try:
            self.rows.seen(rows, number)
            if self.eviction is not None:
                self.eviction.used(rows, keys)
        except BaseException:  # an interrupt: no key may stay whose record nobody will write
            self.undo(keys.take(fresh))
            raise
        return rows, fresh

    def evict(self, number: int) -> np.ndarray:
        """Closes training batch `number`: the rows [n] that lose their keys, if a round of eviction is due."""
        if self.eviction is None or not self.eviction.due(number):
            return _NONE
        keys, rows = self.eviction.victims(self.index, self.rows.last_seen[: self.rows.ever], number)
        self.index.remove(keys)
        self.rows.quarantine(rows, number)
        if self.removed is not None and rows.size:
            self.removed.append(keys)
        return rows

    def _admit(self, keys: KeySet, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.index.find(keys)
        unknown = np.flatnonzero(rows < 0)
        admitted = unknown[self.admission.admit(keys.take(unknown))]
        rows[admitted], _ = self.index.find_or_insert(keys.take(admitted), self.rows)
        if number % self._rules.evict_every == 0:
            self.admission.end_round()
        return rows, admitted

    def undo(self, fresh: KeySet) -> None:
        """Takes back the rows that `resolve` gave to new keys: the batch was refused before it had records."""
        self._forget_rows(self.index.remove(fresh))

    def _forget_rows(self, rows: np.ndarray) -> None:
        """Rows [n] belong to no key any more, and nothing that was counted of them stays."""
        rows = rows[rows >= 0]
        if self.eviction is not None and self.eviction.stats is not None:
            self.eviction.stats.clear(rows)
        self.rows.give_back(rows)

    def pin(
        self, residency: GroupResidency, positions: np.ndarray | slice, overwrite: np.ndarray = _NONE
    ) -> np.ndarray:
        """Frames of the keys at `positions` [n] (all with a row), and of rows [m] that will be overwritten whole.

        They stay where they are until `memory.unpin`; records of new keys are initialised.

        Returns:
            [n + m] int64.
        """
        rows = residency.rows[positions]
        chosen = np.arange(len(residency.keys))[positions]
        new = (
            np.isin(chosen, residency.fresh, assume_unique=True) if residency.fresh.size else np.zeros(rows.size, bool)
        )
        read = np.concatenate([~new, np.zeros(overwrite.size, bool)])
        frames = self.memory.pin(np.concatenate([rows, overwrite]), read)
        if new.any():
            self._initialise(self.memory.array, frames[: rows.size][new], residency.keys, chosen[new])
        return frames

    def look(self, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        """[n, dim] copy of the weights at `positions` [n] of the unique keys (all when None). Changes nothing."""
        rows = residency.rows if positions is None else residency.rows[positions.numpy()]
        weights = self.memory.copy(np.maximum(rows, 0), self.group.dim)
        return self.complete(weights, residency, positions)

    def complete(self, weights: Tensor, residency: GroupResidency, positions: Tensor | None) -> Tensor:
        """Writes into weights [n, dim] what keys without a row read; `positions` as in `look`. Returns weights.

        With admission that is the table's constant, without it what initialisation would give.
        """
        if residency.rowless.size:
            at = np.arange(len(residency.keys)) if positions is None else positions.cpu().numpy()
            where = np.flatnonzero(residency.rows[at] < 0)
            if self.admission:
                tables = residency.keys.tables(at[where])
                weights[torch.from_numpy(where)] = torch.from_numpy(self._defaults[tables]).to(weights.dtype)[:, None]
            else:
                self._initialise(weights.numpy(), where, residency.keys, at[where])
        return weights

    def records(self, rows: np.ndarray) -> Tensor:
        """[n, width] copy of the records of rows [n]: the newest ones once the device tier is flushed."""
        return self.memory.copy(rows)

    def initial(self, keys: KeySet) -> Tensor:
        """[U, width]: the records that the keys would start with. Changes nothing."""
        records = torch.empty(len(keys), self.group.record_width, dtype=self.memory.records.dtype)
        at = np.arange(len(keys))
        self._initialise(records.numpy(), at, keys, at)
        return records

    def put(self, keys: KeySet, records: np.ndarray, last_seen: np.ndarray) -> None:
        """Records [U, width] and last uses [U] int32 of keys from elsewhere, new ones or in place of what they had.

        No batch is in flight, and no more keys than there are frames.

        Raises:
            UserError: no room for them.
        """
        rows, _ = self.index.find_or_insert(keys, self.rows)
        frames = self.memory.pin(rows, np.zeros(rows.size, dtype=bool))
        self.memory.array[frames] = records
        self.memory.unpin(frames, changed=True)
        self.rows.last_seen[rows] = last_seen

    def drop(self, keys: KeySet) -> None:
        """Takes keys away with their records, at once: no batch is in flight."""
        rows = self.index.remove(keys)
        self.memory.free(rows[rows >= 0])
        self._forget_rows(rows)

    def export(self, table: int) -> dict[str, Tensor]:
        """ids [n] ascending, weight [n, dim] and state [n, s] of one table: a canonical order."""
        ids, rows = self.index.entries(table)
        records = self.records(rows)
        dim = self.group.dim
        return {
            "ids": torch.from_numpy(ids),
            "weight": records[:, :dim].contiguous(),
            "state": records[:, dim:].contiguous(),
        }

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of host memory: of the key index, of records, of what admission and eviction keep; and of disk."""
        memory, given = self.memory, self.rows.ever
        features = 0 if self.admission is None else self.admission.nbytes
        if self.eviction is not None and self.eviction.stats is not None:
            features += self.eviction.stats.nbytes(given)
        in_memory = given * memory.record_bytes if isinstance(memory, Arena) else memory.nbytes
        below = 0 if isinstance(memory, Arena) else memory.file.nbytes
        return {"index": self.index.nbytes, "records": in_memory, "features": features, "disk": below}

    def _initialise(self, records: np.ndarray, at: np.ndarray, keys: KeySet, positions: np.ndarray) -> None:
        """Initial values of the keys at `positions` [n] into records[at]."""
        self._initialiser.write(records, at, keys.ids[positions], keys.tables(positions))


def _remedy(options: Tiers) -> str:
    """What helps when there is no room for another row."""
    if options.disk:
        return f"the disk of '{options.disk}' has no room for more: free space there, or give another folder with disk="
    if options.host_capacity or options.host_rows:
        return "host_capacity (host_rows) bounds them: give more, or a folder for the others with disk="
    return "use a machine with more memory, or a disk tier (host_capacity= with disk=)"


def make_index(group: TableGroup, options: Tiers) -> KeyIndex | BucketedIndex:
    """In one part, or in buckets."""
    initial = sum(table.initial_rows for table in group.tables)
    if options.index_buckets == 1:
        return KeyIndex(initial)
    return BucketedIndex(initial, options.index_buckets, options.index_threads)


def make_memory(group: TableGroup, dtype: torch.dtype, options: Tiers, share: float) -> RecordMemory:
    """The memory that the options ask for; `share` is this group's of the bytes of all (see `shares`).

    Raises:
        UserError: not one record fits, or the disk's folder cannot be used.
    """
    record_bytes = group.record_width * dtype.itemsize
    frames = int(options.host_capacity * share) // record_bytes
    if options.host_capacity and not frames:
        raise UserError(
            f"host_capacity={options.host_capacity}: not one row of {record_bytes} bytes fits its share of that; "
            f"give at least {int(record_bytes / share) + 1:,}"
        )
    if options.host_rows:
        frames = max(1, int(options.host_rows * share))
    if not options.disk:
        return Arena(group.record_width, dtype, frames * record_bytes or None)
    return BufferPool(group.record_width, dtype, frames, RecordFile(options.disk, record_bytes))


def shares(groups: Sequence[TableGroup]) -> list[float]:
    """How host capacity is divided: in proportion to tables times width of a record. They sum to 1."""
    weights = [len(group.tables) * group.record_width for group in groups]
    return [weight / sum(weights) for weight in weights]
