"""`EmbeddingStore`: the tables of one rank, from ids to rows, and back with gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.config import TableConfig, TableGroup, group_tables
from nestlab.embedding.counters import Counters
from nestlab.embedding.device import make_tier
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.tier import HostTier, make_memory, shares
from nestlab.embedding.initialisation import Initialiser
from nestlab.embedding.keys import KeyLayout
from nestlab.embedding.keyset import KeySet, int64_array
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.residency import NO_ROWS, Call, GroupResidency, Residency
from nestlab.embedding.saved import SavePoint
from nestlab.embedding.tensor_train.table import TTTable
from nestlab.embedding.tensor_train.whole import WholeTables
from nestlab.embedding.tiers import Tiers
from nestlab.embedding.warmup import warm_up
from nestlab.errors import UserError


class TableUser(Protocol):
    """Who trains the tables: a pipeline."""

    def give_way(self) -> None:
        """Another one takes over: when this returns, nothing of this one works on the tables any more."""
        ...


class EmbeddingStore:
    """Tables whose rows appear when ids do; `[weight | optimizer state]` a record.

    The calls of one batch come in the order prepare, commit, gather …, apply, writeback, release; `prepare` is resolve,
    plan and retrieve in one. `prepare` calls come in batch order, one at a time, and may run beside gather and apply of
    earlier batches, as far as the edges of nestlab/pipeline/edges.py allow for the device tier at hand.

    Attributes:
        whole: tensor-train tables, which a rank has whole or not at all.
        groups: the others; tables of equal dim, each with one index, one address space and one device tier.
        layout: which feature looks up which table, for `keys.route`.
        options: the tiers.
        counters: sums over everything trained so far.
        last_step: number of the newest step applied: a later pipeline counts on from there.
        lr: the learning rate of steps that name none; None stands for the optimizer's own.
        save_point: of the last checkpoint saved or loaded; None: there was none.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        optimizer: RowOptimizer,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        tiers: Tiers | None = None,
    ) -> None:
        """
        Args:
            tables: the order of tables of one dim is kept within their group.
            optimizer: one for all tables.
            seed: of initial weights.
            dtype: of records, float32 or float64.
            tiers: where records live; None: in host memory alone (`Direct`), every id admitted.

        Raises:
            UserError: names clash, or the dtype is unknown.
        """
        if dtype not in (torch.float32, torch.float64):
            raise UserError(f"EmbeddingStore: records are float32 or float64, not {dtype}")
        warm_up(dtype)
        self.options = tiers or Tiers()
        self.optimizer, self.seed, self.dtype = optimizer, seed, dtype
        self.whole = WholeTables(
            [table for table in tables if table.tensor_train is not None],
            lambda table: TTTable(table, optimizer, seed=seed, dtype=dtype),
        )
        self.groups: tuple[TableGroup, ...] = group_tables(tables, optimizer.state_width)
        self.layout = KeyLayout(self.groups, self.whole.configs)
        self.last_step = 0
        self.lr: float | None = None
        self.save_point: SavePoint | None = None
        self.counters = Counters()
        self.hosts = tuple(map(self._make_host, self.groups, shares(self.groups)))
        self.tiers = tuple(make_tier(host, optimizer, self.options, self.counters) for host in self.hosts)
        self._where = {t.name: (group.number, i) for group in self.groups for i, t in enumerate(group.tables)}
        self._user: weakref.ref[TableUser] | None = None
        self._live: dict[int, Residency] = {}  # training batches between resolve and release, by number

    def prepare(self, keys: Sequence[KeySet], train: bool = True, batch: int | None = None) -> Residency:
        """Finds the rows of a batch's unique keys, one KeySet a group, and fetches their records.

        With `train`, unknown keys are inserted with initialised records. Without, nothing changes anywhere: unknown
        keys get row −1, and read what initialisation would give.

        Args:
            batch: the number that messages name; None stands for the count of training batches so far, from 1.

        Raises:
            ValueError: not one KeySet a group, or not one run a table in it.
            UserError: host memory, the disk or the device tier cannot hold the batch. `settle` then makes the store
                usable again, without the batch.
        """
        if not train:
            return self._look(keys, batch or 0)
        residency = self.resolve(keys, batch)
        self.plan(residency)
        self.retrieve(residency)
        return residency

    def resolve(self, keys: Sequence[KeySet], batch: int | None = None) -> Residency:
        """The first part of `prepare`: which keys are admitted, and their rows; new keys are inserted."""
        self._check_keys(keys)
        number = self.counters.batches + 1
        oldest = min(self._live, default=number)
        groups: list[GroupResidency] = []
        try:
            for host, group_keys in zip(self.hosts, keys, strict=True):
                groups.append(self._resolve_group(host, group_keys, number, oldest))
        except BaseException:
            self._undo_groups(groups)
            raise
        self.counters.batches = number
        name = self.options.device_tier
        residency = Residency(number if batch is None else batch, number, name, tuple(groups), True, [Call.RESOLVE])
        self._live[number] = residency
        return residency

    def plan(self, residency: Residency) -> None:
        """The second part: places in the device tier, and which rows leave it. Data only, no record moves.

        Raises:
            CacheTooSmall: the batches in flight do not fit the device tier. No key of the batch stays then; what
                admission and eviction counted of it stays counted.
        """
        residency.require_live("plan")
        try:
            for tier, group in zip(self.tiers, residency.groups, strict=True):
                tier.require_room(group)
        except UserError:  # with it go the batches that were resolved after it, whose keys may be this one's
            self._undo([later for number, later in sorted(self._live.items()) if number >= residency.number])
            raise
        for tier, group in zip(self.tiers, residency.groups, strict=True):
            tier.plan(group)
        residency.done.append(Call.PLAN)

    def retrieve(self, residency: Residency) -> None:
        """The third part: records that the device tier lacks are fetched from below, new ones initialised."""
        self._call("retrieve", residency, lambda tier, group: tier.retrieve(group), Call.RETRIEVE)

    def commit(self, residency: Residency) -> None:
        """Makes the device tier hold the newest records. Direct has none: nothing to do."""
        self._call("commit", residency, lambda tier, group: tier.commit(group), Call.COMMIT)

    def gather(self, residency: Residency, group: int, positions: Tensor | None = None) -> Tensor:
        """[n, dim] weights of the unique keys at `positions` [n] int64 (all when None), on the tier's device.

        A copy: it may become an autograd leaf, and a later `apply` does not change it.
        """
        residency.require_live("gather")
        rows = self.tiers[group].gather(residency.groups[group], positions)
        if residency.train:
            self.counters.bytes_gathered += rows.nbytes
        return rows

    def apply(self, residency: Residency, grads: Sequence[Tensor], step: StepInfo) -> None:
        """One row-optimizer step, per group on grads [U, dim], summed per key. Keys without a row are passed by.

        Raises:
            RuntimeError: the residency is released, or was prepared for evaluation.
            ValueError: a gradient's shape is not [U, dim] of its group.
        """
        residency.require_live("apply")
        if not residency.train:
            raise RuntimeError(f"apply: batch {residency.batch} was prepared with train=False; nothing may change")
        step = self.timed(step)
        for group, held, tier, grad in zip(self.groups, residency.groups, self.tiers, grads, strict=True):
            if tuple(grad.shape) != (len(held.keys), group.dim):
                raise ValueError(
                    f"apply: gradient of group {group.number} is {tuple(grad.shape)}, not {(len(held.keys), group.dim)}"
                )
            tier.apply(held, grad.detach().to(self.dtype).contiguous(), step)
            updated = len(held.keys) - held.rowless.size
            self.counters.bytes_updated += updated * group.record_width * self.dtype.itemsize
        self.last_step = max(self.last_step, step.number)
        residency.done.append(Call.APPLY)

    def timed(self, step: StepInfo) -> StepInfo:
        """The step with the learning rate that holds now, where it names none."""
        return replace(step, lr=self.lr) if step.lr is None and self.lr is not None else step

    def writeback(self, residency: Residency) -> None:
        """Hands changed records to the tier below. Direct changes them in place: nothing to do."""
        self._call("writeback", residency, lambda tier, group: tier.writeback(group), Call.WRITEBACK)

    def release(self, residency: Residency) -> None:
        """Ends the use of a residency; any further use raises RuntimeError."""
        residency.require_live("release")
        if residency.train:
            for tier, group in zip(self.tiers, residency.groups, strict=True):
                tier.release(group)
            self._live.pop(residency.number, None)
        residency.done.append(Call.RELEASE)

    def foresee(self, keys: Sequence[KeySet]) -> None:
        """The keys of a batch to come, one KeySet a group, in batch order from the first one on.

        Where `options.looks_ahead` is L > 0, those of batch t + L have to be told before batch t is planned, as far as
        there are so many; elsewhere nobody listens.
        """
        for tier, group_keys in zip(self.tiers, keys, strict=True):
            tier.foresee(group_keys)

    def end_of_stream(self) -> None:
        """No more batches come after those that were foreseen; what is foreseen later belongs to a new stream."""
        for tier in self.tiers:
            tier.end_of_stream()

    def evict(self) -> None:
        """After `prepare` of a batch and before that of the next: keys that the rules give up lose their rows.

        What goes depends on the batches resolved so far alone; rows of the last two of them stay.
        """
        for host, tier in zip(self.hosts, self.tiers, strict=True):
            rows = host.evict(self.counters.batches)
            tier.forget(rows)
            self.counters.evicted += rows.size

    def hand_to(self, user: TableUser) -> None:
        """`user` trains these tables from now on; whoever did before gives way, and what it left behind is settled."""
        before = self._user() if self._user is not None else None
        if before is not None:
            before.give_way()
        self._user = weakref.ref(user)
        self.settle()

    def is_used_by(self, user: TableUser) -> bool:
        """Whether no one else took these tables over since `user` did."""
        return self._user is not None and self._user() is user

    def settle(self) -> None:
        """Ends the batches that were broken off, so that others can follow and the tables can be saved.

        Those that were applied are written back; the others leave the rows as they were, and no key that was never
        trained. What admission and eviction counted of them stays counted.
        """
        self.whole.forget()
        live = sorted(self._live.values(), key=lambda residency: residency.number)
        self._undo([residency for residency in live if Call.PLAN not in residency.done])
        planned = [residency for residency in live if Call.PLAN in residency.done]
        for residency in (residency for residency in planned if Call.APPLY in residency.done):
            if Call.WRITEBACK not in residency.done:
                self.writeback(residency)
            self.release(residency)
        self._abandon([residency for residency in planned if Call.APPLY not in residency.done])

    def _abandon(self, residencies: Sequence[Residency]) -> None:
        """In order; nothing else is in flight."""
        if not residencies:
            return
        for number, (host, tier) in enumerate(zip(self.hosts, self.tiers, strict=True)):
            host.memory.unpin_all()
            tier.abandon([residency.groups[number] for residency in residencies])
        for residency in residencies:
            self._drop_new(residency)
            residency.done.append(Call.RELEASE)
            self._live.pop(residency.number, None)

    def flush(self) -> None:
        """Makes the host tier hold the newest record of every row; what is cached stays cached.

        Raises:
            RuntimeError: batches are in flight.
        """
        self.require_quiet("flush")
        for tier in self.tiers:
            tier.flush()

    def full_weight(self, table: str, ids: Tensor | np.ndarray) -> Tensor:
        """[n, dim]: the weight of each id [n] (repeats allowed), whether it was ever touched or not. Changes nothing.

        The oracle that every mechanism is tested against (the idea of FBTT's `full_weight`).
        """
        if (cores := self.whole.table(table)) is not None:
            return cores.full_weight(ids).cpu()
        group, number = self._locate(table)
        ids = int64_array(ids)
        offsets = np.zeros(len(self.groups[group].tables) + 1, dtype=np.int64)
        offsets[number + 1 :] = ids.size
        looked = self._look_group(group, KeySet(ids, offsets))
        return self.tiers[group].gather(looked, None).cpu()

    def export(self, table: str) -> dict[str, Tensor]:
        """ids [n] int64 ascending, weight [n, dim], state [n, s]: two equal runs export equal bytes.

        Raises:
            RuntimeError: batches are in flight, whose keys would be among them untrained.
        """
        if any(table == config.name for config in self.whole.configs):
            raise UserError(f"export: '{table}' is a tensor train, whose cores are no rows; take store.whole.table(…)")
        group, number = self._locate(table)
        self.flush()
        return self.hosts[group].export(number)

    def nbytes(self) -> dict[str, int]:
        """Bytes of host memory by kind, over all groups: of the key index, of the records ever given out (or of the
        frames that hold some of them), of what admission and eviction keep."""
        parts = [host.nbytes for host in self.hosts]
        return {name: sum(part[name] for part in parts) for name in ("index", "records", "features")}

    @property
    def disk_bytes(self) -> int:
        """Bytes that the disk tier holds."""
        return sum(host.nbytes["disk"] for host in self.hosts)

    def traffic(self) -> dict[str, int]:
        """What the tiers did so far: keys by where they were found, rows moved, and bytes by place; see `Counters`."""
        pools = [host.memory for host in self.hosts if isinstance(host.memory, BufferPool)]
        names = ("known", "inserts", "refused", "evicted", "hits", "misses", "writebacks", "bytes_in", "bytes_out")
        return {
            **{name: value for name, value in self.counters.as_dict().items() if name in names},
            "records_read_from_disk": sum(pool.promoted for pool in pools),
            "records_written_to_disk": sum(pool.demoted for pool in pools),
            "device_bytes": self.device_bytes,
            "host_bytes": sum(self.nbytes().values()),
            "disk_bytes": self.disk_bytes,
        }

    @property
    def device_bytes(self) -> int:
        """Bytes of the device tier: slots or buffers, and the maps that go with them."""
        return sum(tier.nbytes for tier in self.tiers)

    def require_quiet(self, call: str) -> None:
        """Raises RuntimeError while batches are in flight."""
        if self._live:
            raise RuntimeError(
                f"{call}: {len(self._live)} batches are in flight; drain the pipeline first, or settle() them"
            )

    def _make_host(self, group: TableGroup, share: float) -> HostTier:
        initialiser = Initialiser(group, self.seed, self.optimizer.initial_state)
        return HostTier(group, initialiser, make_memory(group, self.dtype, self.options, share), self.options)

    def _resolve_group(self, host: HostTier, keys: KeySet, number: int, oldest: int) -> GroupResidency:
        rows, fresh = host.resolve(keys, number, oldest)
        held = GroupResidency(keys, rows, fresh, number, True, len(host.index))
        self.counters.inserts += fresh.size
        self.counters.known += len(keys) - fresh.size - held.rowless.size
        self.counters.refused += held.rowless.size
        return held

    def _look(self, keys: Sequence[KeySet], batch: int) -> Residency:
        self._check_keys(keys)
        groups = tuple(self._look_group(number, k) for number, k in enumerate(keys))
        return Residency(batch, self.counters.batches, self.options.device_tier, groups, False)

    def _look_group(self, group: int, keys: KeySet) -> GroupResidency:
        held = GroupResidency(keys, self.hosts[group].find(keys), NO_ROWS, self.counters.batches, False)
        self.tiers[group].look(held)
        return held

    def _undo(self, refused: Sequence[Residency]) -> None:
        """Batches that were resolved and never planned leave no key behind, the last one first."""
        for residency in reversed(refused):
            self._undo_groups(residency.groups)
            residency.done.append(Call.RELEASE)
            self._live.pop(residency.number, None)

    def _undo_groups(self, groups: Sequence[GroupResidency]) -> None:
        for host, group in zip(self.hosts, groups, strict=False):  # as many groups as were resolved
            host.undo(group.keys.take(group.fresh))
            self.counters.inserts -= group.fresh.size

    def _drop_new(self, residency: Residency) -> None:
        """Takes away the keys that a batch brought in which was never trained. No batch is in flight."""
        for host, tier, group in zip(self.hosts, self.tiers, residency.groups, strict=True):
            tier.forget(group.rows[group.fresh])
            host.drop(group.keys.take(group.fresh))
            self.counters.inserts -= group.fresh.size

    def _call(self, name: str, residency: Residency, call: Callable, done: Call) -> None:
        residency.require_live(name)
        if residency.train:
            for tier, group in zip(self.tiers, residency.groups, strict=True):
                call(tier, group)
        residency.done.append(done)

    def _check_keys(self, keys: Sequence[KeySet]) -> None:
        tables, runs = [len(group.tables) for group in self.groups], [k.offsets.size - 1 for k in keys]
        if tables != runs:
            raise ValueError(f"prepare: KeySets with {runs} runs for groups of {tables} tables; one run a table")

    def _locate(self, table: str) -> tuple[int, int]:
        if table not in self._where:
            names = (*self._where, *(config.name for config in self.whole.configs))
            raise UserError(f"no table is called '{table}'; there are {', '.join(names)}")
        return self._where[table]
