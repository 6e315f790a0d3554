"""`EmbeddingStore`: the tables of one rank, from ids to rows, and back with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.config import TableConfig, TableGroup, group_tables
from nestlab.embedding.counters import Counters
from nestlab.embedding.direct import Direct
from nestlab.embedding.host import HostTier
from nestlab.embedding.initialisation import Initialiser
from nestlab.embedding.keys import KeyLayout
from nestlab.embedding.keyset import KeySet, int64_array
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import Residency
from nestlab.embedding.warmup import warm_up
from nestlab.errors import NotAvailableYet, UserError

_TIERS = {"direct": Direct}
_PLANNED_TIERS = ("dual_buffer", "slot_cache")


class EmbeddingStore:
    """Tables whose rows appear when ids do; `[weight | optimizer state]` a record.

    The calls of one batch come in the order prepare, commit, gather …, apply, writeback, release. `prepare` calls come
    in batch order, one at a time, and may run beside gather and apply of earlier batches.

    Attributes:
        groups: tables of equal dim, each with one index, one arena, one address space.
        layout: which feature looks up which table, for `keys.route`.
        counters: sums over everything trained so far.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        optimizer: RowOptimizer,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device_tier: str = "direct",
    ) -> None:
        """
        Args:
            tables: the order of tables of one dim is kept within their group.
            optimizer: one for all tables.
            seed: of initial weights.
            dtype: of records, float32 or float64.
            device_tier: `direct` so far.

        Raises:
            UserError: names clash, the dtype or the tier is unknown.
            NotAvailableYet: a tier of the design that is not built yet.
        """
        if dtype not in (torch.float32, torch.float64):
            raise UserError(f"EmbeddingStore: records are float32 or float64, not {dtype}")
        tier = _tier(device_tier)
        warm_up(dtype)
        self.optimizer, self.seed, self.dtype = optimizer, seed, dtype
        self.groups: tuple[TableGroup, ...] = group_tables(tables, optimizer.state_width)
        self.layout = KeyLayout(self.groups)
        self.last_step = 0  # number of the newest step applied: a later pipeline counts on from there
        self.counters = Counters()
        self.hosts = tuple(
            HostTier(group, Initialiser(group, seed, optimizer.initial_state), dtype) for group in self.groups
        )
        self.tier = tier(self.hosts, optimizer)
        self._where = {t.name: (group.number, i) for group in self.groups for i, t in enumerate(group.tables)}

    def prepare(self, keys: Sequence[KeySet], train: bool = True, batch: int | None = None) -> Residency:
        """Finds the rows of a batch's unique keys, one KeySet a group.

        With `train`, unknown keys are inserted with initialised records. Without, nothing changes anywhere: unknown
        keys get row −1, and read what initialisation would give.

        Args:
            batch: the number that messages name; None stands for the count of training batches so far, from 1.

        Raises:
            ValueError: not one KeySet a group, or not one run a table in it.
            UserError: host memory cannot hold the new keys; nothing was changed in their group.
        """
        self._check_keys(keys)
        if not train:
            rows = [host.find(k) for host, k in zip(self.hosts, keys, strict=True)]
            return self._residency(keys, rows, False, batch or 0)
        rows = []
        for host, group_keys in zip(self.hosts, keys, strict=True):
            found, inserts = host.find_or_insert(group_keys)
            rows.append(found)
            self.counters.inserts += inserts
            self.counters.hits += len(group_keys) - inserts
        self.counters.batches += 1
        return self._residency(keys, rows, True, self.counters.batches if batch is None else batch)

    def commit(self, residency: Residency) -> None:
        """Makes the device tier hold the newest records. Direct has none: nothing to do."""
        residency.require_live("commit")
        self.tier.commit(residency)

    def gather(self, residency: Residency, group: int, positions: Tensor | None = None) -> Tensor:
        """[n, dim] weights of the unique keys at `positions` [n] int64 (all when None).

        A copy: it may become an autograd leaf, and a later `apply` does not change it.
        """
        residency.require_live("gather")
        rows = self.tier.gather(residency, group, positions)
        if residency.train:
            self.counters.bytes_gathered += rows.nbytes
        return rows

    def apply(self, residency: Residency, grads: Sequence[Tensor], step: StepInfo) -> None:
        """One row-optimizer step, per group on grads [U, dim], summed per key.

        Raises:
            RuntimeError: the residency is released, or was prepared for evaluation.
            ValueError: a gradient's shape is not [U, dim] of its group.
        """
        residency.require_live("apply")
        if not residency.train:
            raise RuntimeError(f"apply: batch {residency.batch} was prepared with train=False; nothing may change")
        for group, keys, grad in zip(self.groups, residency.keys, grads, strict=True):
            if tuple(grad.shape) != (len(keys), group.dim):
                raise ValueError(
                    f"apply: gradient of group {group.number} is {tuple(grad.shape)}, not {(len(keys), group.dim)}"
                )
            grad = grad.detach().to(self.dtype).contiguous()
            self.tier.apply(residency, group.number, grad, step)
            self.counters.bytes_updated += len(keys) * group.record_width * self.dtype.itemsize
        self.last_step = max(self.last_step, step.number)

    def writeback(self, residency: Residency) -> None:
        """Queues changed records for the tier below. Direct changes them in place: nothing to do."""
        residency.require_live("writeback")
        self.tier.writeback(residency)

    def release(self, residency: Residency) -> None:
        """Ends the use of a residency; any further use raises RuntimeError."""
        residency.require_live("release")
        self.tier.release(residency)
        residency.released = True

    def full_weight(self, table: str, ids: Tensor | np.ndarray) -> Tensor:
        """[n, dim]: the weight of each id [n] (repeats allowed), whether it was ever touched or not. Changes nothing.

        The oracle that every mechanism is tested against (the idea of FBTT's `full_weight`).
        """
        group, number = self._locate(table)
        ids = int64_array(ids)
        offsets = np.zeros(len(self.groups[group].tables) + 1, dtype=np.int64)
        offsets[number + 1 :] = ids.size
        keys, host = KeySet(ids, offsets), self.hosts[group]
        return host.weights_or_default(torch.from_numpy(host.find(keys)), keys, np.arange(ids.size))

    def export(self, table: str) -> dict[str, Tensor]:
        """ids [n] int64 ascending, weight [n, dim], state [n, s]: two equal runs export equal bytes."""
        group, number = self._locate(table)
        return self.hosts[group].export(number)

    def nbytes(self) -> dict[str, int]:
        """Bytes of the index and of the records ever given out, over all groups."""
        return {
            "index": sum(host.index.nbytes for host in self.hosts),
            "records": sum(host.arena.nbytes for host in self.hosts),
        }

    def _residency(self, keys, rows, train: bool, batch: int) -> Residency:
        return Residency(batch, self.tier.name, tuple(keys), tuple(map(torch.from_numpy, rows)), train)

    def _check_keys(self, keys: Sequence[KeySet]) -> None:
        tables, runs = [len(group.tables) for group in self.groups], [k.offsets.size - 1 for k in keys]
        if tables != runs:
            raise ValueError(f"prepare: KeySets with {runs} runs for groups of {tables} tables; one run a table")

    def _locate(self, table: str) -> tuple[int, int]:
        if table not in self._where:
            raise UserError(f"no table is called '{table}'; there are {', '.join(self._where)}")
        return self._where[table]


def _tier(name: str):
    if name in _PLANNED_TIERS:
        raise NotAvailableYet(f"device_tier '{name}' is not available yet; use direct")
    if name not in _TIERS:
        raise UserError(f"unknown device_tier '{name}'; use one of {', '.join((*_TIERS, *_PLANNED_TIERS))}")
    return _TIERS[name]
