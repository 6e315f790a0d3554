"""From a batch's ids to unique keys and positions: deduplication and key routing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import kernels
from nestlab.embedding.config import TableConfig, TableGroup
from nestlab.embedding.features.feature_kernels import tally
from nestlab.embedding.host.arena import zeros
from nestlab.embedding.keyset import KeySet, int64_array
from nestlab.errors import UserError

_LAST_STAMP = (1 << 31) - 1


class Scratch:
    """The hash table of deduplication, kept between calls; for one thread at a time.

    A call writes under stamps of its own, so that the table is never cleared: only when stamps run out.
    """

    def __init__(self) -> None:
        self._slots = zeros(2 * 64, np.int64)
        self._stamp = 0

    def take(self, ids: int, stamps: int) -> tuple[np.ndarray, int]:
        """Slots for tables of up to `ids` ids each, and the last stamp used; `stamps` more are the caller's."""
        capacity = 1 << max(6, (2 * ids - 1).bit_length())
        if 2 * capacity > self._slots.size:
            self._slots, self._stamp = zeros(2 * capacity, np.int64), 0
        elif self._stamp + stamps > _LAST_STAMP:
            self._slots[:] = 0
            self._stamp = 0
        last = self._stamp
        self._stamp += stamps
        return self._slots, last


class _ThreadScratch(threading.local):
    """Lanes are threads: each has a scratch of its own, made on first use."""

    def __init__(self) -> None:
        self.scratch = Scratch()


_local = _ThreadScratch()


def deduplicate(
    ids: np.ndarray | Tensor,
    segment_offsets: np.ndarray | Tensor,
    segment_tables: Sequence[int] | None = None,
    num_tables: int | None = None,
    scratch: Scratch | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unique ids per table, in order of first appearance, and where every id went. One call for all tables.

    Args:
        ids: [n] int64, segment by segment (a segment is a feature over the whole batch).
        segment_offsets: [S+1] int64.
        segment_tables: the table of each segment, below num_tables; None stands for a table a segment. Several segments
            may share one table.
        num_tables: T; None stands for what segment_tables needs.
        scratch: None stands for this thread's own.

    Returns:
        unique ids [U] int64, table-major; their offsets [T+1] int64; inverse [n] int64 with unique[inverse] == ids.
    """
    ids, offsets = int64_array(ids), int64_array(segment_offsets)
    count = offsets.size - 1
    tables = np.arange(count) if segment_tables is None else np.asarray(segment_tables, dtype=np.int64)
    num_tables = int(tables.max(initial=-1)) + 1 if num_tables is None else num_tables
    segments = np.stack([offsets[:-1], offsets[1:], offsets[:-1]], axis=1)
    return _deduplicate(ids, *_by_table(segments, tables, num_tables), ids.size, scratch)


def _by_table(segments: np.ndarray, tables: np.ndarray, num_tables: int) -> tuple[np.ndarray, np.ndarray]:
    """The segments [S, 3] sorted by table, and the run of each table in them [T+1]."""
    order = np.argsort(tables, kind="stable")
    runs = np.zeros(num_tables + 1, dtype=np.int64)
    np.cumsum(np.bincount(tables, minlength=num_tables), out=runs[1:])
    return np.ascontiguousarray(segments[order]), runs


def _deduplicate(ids, segments, runs, size: int, scratch: Scratch | None):
    if segments.size and (segments[:, 0].min() < 0 or (segments[:, 1] < segments[:, 0]).any()):
        raise ValueError("deduplicate: segment offsets must be 0 or more and must not fall")
    if segments.size and segments[:, 1].max() > ids.size:  # a kernel would read on beyond the ids
        raise ValueError(f"deduplicate: a segment ends at {segments[:, 1].max()}, but there are {ids.size} ids")
    if size >= 1 << 32:
        raise ValueError(f"deduplicate: {size} ids in one call; at most 2^32 − 1")
    lengths = segments[:, 1] - segments[:, 0]
    totals = np.concatenate(([0], np.cumsum(lengths)))[runs]
    slots, stamp = (scratch or _local.scratch).take(int(np.diff(totals).max(initial=0)), runs.size - 1)
    unique, inverse = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    unique_offsets = np.empty(runs.size, dtype=np.int64)
    count = kernels.deduplicate(ids, segments, runs, slots, stamp, unique, unique_offsets, inverse)
    return unique[:count].copy(), unique_offsets, inverse


@dataclass(frozen=True, eq=False)
class GroupBinding:
    """Which of a batch's features belong to one group.

    Attributes:
        features: names, in the batch's order.
        columns: [F_g] int64, their places among the batch's features.
        tables: [F_g] int64, the number of the table of each, within the group.
    """

    group: TableGroup
    features: tuple[str, ...]
    columns: np.ndarray
    tables: np.ndarray


class KeyLayout:
    """Which feature looks up which table; bound once to each order of features that batches come with.

    Args:
        groups: the tables of rows.
        whole: tables that have no rows of their own (tensor trains): batches hold their features too.
    """

    def __init__(self, groups: Sequence[TableGroup], whole: Sequence[TableConfig] = ()) -> None:
        self.groups, self.whole = tuple(groups), tuple(whole)
        self._bound: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[GroupBinding, ...]] = {}

    def bind(self, features: tuple[str, ...], values: tuple[str, ...] = ()) -> tuple[GroupBinding, ...]:
        """One binding a group; `values` are features that no table looks up (see `Batch`).

        Raises:
            UserError: another feature of the batch belongs to no table, or a table's feature is not in the batch.
        """
        given = features, values
        if given not in self._bound:
            self._check(features, values)
            self._bound[given] = tuple(self._bind(group, features) for group in self.groups)
        return self._bound[given]

    @property
    def features(self) -> tuple[str, ...]:
        """Every feature that some table looks up."""
        return (*self.table_of, *(f for table in self.whole for f in table.features))

    @property
    def table_of(self) -> dict[str, str]:
        """Feature → table, of the tables of rows."""
        return {f: table.name for group in self.groups for table in group.tables for f in table.features}

    def _check(self, features: tuple[str, ...], values: tuple[str, ...]) -> None:
        known = self.table_of | {f: table.name for table in self.whole for f in table.features}
        if unknown := [f for f in features if f not in known and f not in values]:
            raise UserError(f"no table for the batch's feature(s) {', '.join(unknown)}; add them to a table's features")
        if both := [f for f in values if f in known]:
            raise UserError(f"feature(s) {', '.join(both)} are values and look up a table; make them one or the other")
        if missing := [f"{f} (table {table})" for f, table in known.items() if f not in features]:
            raise UserError(f"the batch lacks feature(s) {', '.join(missing)}; it has {', '.join(features)}")
        if len(set(features)) != len(features):
            raise UserError(f"the batch's features repeat: {', '.join(features)}; name each once")

    @staticmethod
    def _bind(group: TableGroup, features: tuple[str, ...]) -> GroupBinding:
        table_of = {f: number for number, table in enumerate(group.tables) for f in table.features}
        columns = np.array([c for c, f in enumerate(features) if f in table_of], dtype=np.int64)
        names = tuple(features[c] for c in columns)
        return GroupBinding(group, names, columns, np.array([table_of[f] for f in names], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class GroupKeys:
    """The keys of one batch for one group, and how to get back from them to the batch.

    Attributes:
        keys: the unique keys.
        features: the group's features in the batch's order, F_g of them.
        positions: [nnz_g] int64: for each id of these features, feature-major, its place in `keys`.
        lengths: [F_g·B] int64, bag lengths, feature-major.
        id_weights: [nnz_g] or None.
    """

    group: TableGroup
    keys: KeySet
    features: tuple[str, ...]
    positions: Tensor
    lengths: Tensor
    id_weights: Tensor | None = None


def route(
    batch: Batch, layout: KeyLayout, scratch: Scratch | None = None, count: bool = False
) -> tuple[GroupKeys, ...]:
    """Deduplicates a batch's ids, per group. Results lie in host memory; ids on a device are copied there first.

    With `count`, keys carry counts and clicks: what admission and eviction by score need, and deduplication destroys.

    Raises:
        UserError: features and tables do not match (see `KeyLayout.bind`).
    """
    ids = int64_array(batch.ids)
    lengths = batch.feature_lengths().cpu()
    starts = np.zeros(len(batch.features) + 1, dtype=np.int64)
    np.cumsum(lengths.sum(dim=1).numpy(), out=starts[1:])
    if starts[-1] != ids.size:
        raise ValueError(f"route: lengths that sum to {starts[-1]} for {ids.size} ids")
    routed = tuple(
        _route_group(batch, bound, ids, lengths, starts, scratch) for bound in layout.bind(batch.features, batch.values)
    )
    return tuple(_counted(group, batch.labels) for group in routed) if count else routed


def _route_group(batch: Batch, bound: GroupBinding, ids, lengths: Tensor, starts, scratch) -> GroupKeys:
    begin, end = starts[bound.columns], starts[bound.columns + 1]
    into = np.concatenate(([0], np.cumsum(end - begin)))
    segments = np.stack([begin, end, into[:-1]], axis=1)
    tables = _by_table(segments, bound.tables, len(bound.group.tables))
    unique, offsets, inverse = _deduplicate(ids, *tables, int(into[-1]), scratch)
    return GroupKeys(
        group=bound.group,
        keys=KeySet(unique, offsets),
        features=bound.features,
        positions=torch.from_numpy(inverse),
        lengths=lengths.index_select(0, torch.from_numpy(bound.columns)).reshape(-1),
        id_weights=_pick(batch.id_weights, begin, end),
    )


def _counted(routed: GroupKeys, labels: Tensor) -> GroupKeys:
    keys, labels = routed.keys, labels.detach().cpu().to(torch.float32).contiguous()
    counts, clicks = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys))
    tally(routed.positions.numpy(), routed.lengths.numpy(), labels.numpy(), counts, clicks)
    return replace(routed, keys=KeySet(keys.ids, keys.offsets, counts, clicks))


def _pick(values: Tensor | None, begin: np.ndarray, end: np.ndarray) -> Tensor | None:
    """The runs begin[i]:end[i] of `values`, joined; a view where they are one run."""
    if values is None or not begin.size:
        return values if values is None else values[:0]
    if (begin[1:] == end[:-1]).all():
        return values[begin[0] : end[-1]]
    return torch.cat([values[b:e] for b, e in zip(begin.tolist(), end.tolist(), strict=True)])
