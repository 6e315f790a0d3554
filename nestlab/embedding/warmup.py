"""Compiles (or loads from numba's cache) every kernel once, so that no measurement and no first batch pays for it."""

from __future__ import annotations

import threading

import numpy as np
import torch

from nestlab.embedding import bucket_kernels, kernels, pooling_kernels, record_kernels, sharding
from nestlab.embedding.device import buffer_kernels, gather_kernels
from nestlab.embedding.device.look_ahead import Foresight
from nestlab.embedding.device.slot_map import POLICIES, SlotMap
from nestlab.embedding.features import feature_kernels

_done: set[torch.dtype] = set()
_lock = threading.Lock()


def warm_up(dtype: torch.dtype = torch.float32) -> None:
    """Calls each kernel on next to nothing, with the types that the store uses. Cheap when done before."""
    with _lock:
        if dtype in _done:
            return
        _warm_index()
        _warm_buckets()
        _warm_features()
        _warm_device()
        _warm_records(np.float32 if dtype == torch.float32 else np.float64)
        _done.add(dtype)


def _warm_index() -> None:
    slots, ids, offsets = np.zeros(32, np.int64), np.zeros(1, np.int64), np.array([0, 1])
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    kernels.find(slots, ids, offsets, one)
    kernels.find_or_insert(slots, ids, offsets, one, one.copy(), two.copy(), two, np.array([0, 0, 0, 8]))
    kernels.rehash(slots, np.zeros(64, np.int64))
    kernels.entries(slots, 0, ids, one)
    kernels.mark_rows(slots, np.zeros(1, bool))
    kernels.flagged(slots, np.zeros(1, bool), ids, one, one)
    kernels.remove(slots, ids, offsets, one)
    sharding.owner(ids, "", 1)
    segments = np.array([[0, 1, 0]])
    kernels.deduplicate(ids, segments, offsets, np.zeros(64, np.int64), 0, one, np.zeros(2, np.int64), one.copy())


def _warm_records(dtype: type) -> None:
    row, ids, grads = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), dtype)
    salts, bounds = np.zeros(1, np.uint64), np.ones(1)
    records = np.zeros((1, 3), dtype)
    record_kernels.stamp(np.zeros(1, np.int32), row, 1)
    record_kernels.initialise(records, row, ids, row.copy(), salts, bounds, 1, 0.0)
    record_kernels.sgd(records, row, grads, 0.1)
    record_kernels.adagrad(records[:, :2].copy(), row, grads, 0.1, 1e-10)
    record_kernels.rowwise_adagrad(records[:, :2].copy(), row, grads, 0.1, 1e-8, 1.0)
    bags = (row, np.array([0, 1]), False)
    pooling_kernels.pool(grads, *bags, np.zeros((1, 1, 1), dtype))
    pooling_kernels.spread(grads, *bags, np.zeros(1, dtype), (1, 1, 1))
    gather_kernels.gather(records.reshape(-1), 3, row, row.copy(), np.zeros(1, dtype), 1)
    record_kernels.lazy_adam(records, row, grads, 0.1, 0.9, 0.999, 1e-8)


def _warm_buckets() -> None:
    slots, at, masks = np.zeros(64, np.int64), np.zeros(1, np.int64), np.full(1, 15)
    ids, rows, offsets, free = np.zeros(1, np.int64), np.full(1, -1), np.array([0, 1]), np.zeros(1, np.int64)
    bucket_kernels.find(slots, at, masks, ids, offsets, 0, 1, rows, np.zeros(1, np.int64))
    fresh = np.zeros(1, np.int64)
    bucket_kernels.give_rows(rows, fresh, free, np.zeros(2, np.int64))
    bucket_kernels.insert(slots, at, masks, ids, offsets, 0, 1, fresh, rows)
    bucket_kernels.rehash(slots, at, masks, at + 16, masks, 0, 1)
    bucket_kernels.remove(slots, at, masks, ids, offsets, 0, 1, rows, np.zeros(1, np.int64))


def _warm_features() -> None:
    one, offsets, admitted = np.zeros(1, np.int64), np.array([0, 1]), np.empty(1, bool)
    feature_kernels.tally(one, np.ones(1, np.int64), np.zeros(1, np.float32), one.copy(), np.zeros(1))
    for counter in (np.uint8, np.uint32):
        feature_kernels.sketch_admit(np.zeros(8, counter), 2, one, offsets, one, np.ones(1), admitted)
    feature_kernels.add_rows(np.zeros((1, 3)), one, one, np.zeros(1))
    feature_kernels.close_round(np.zeros((1, 3)), 1.0, 1.0, 1.0)


def _warm_device() -> None:
    row, next_row = np.zeros(1, np.int64), np.ones(1, np.int64)
    for policy in POLICIES:
        slots = SlotMap(1, policy, look_ahead=1, row_limit=2)
        seen = Foresight(np.zeros(1, np.int64), ((1, next_row),))
        slots.plan(row, foresight=seen)
        slots.room_needed(row)
        slots.slots_of(row)
        slots.forget(row)
        slots.plan(row[:0], foresight=Foresight(row[:0]))
        slots.plan(row[:0], foresight=Foresight(row[:0]))
        slots.plan(next_row, foresight=seen)
    buffer_kernels.intersect(row, row.copy(), 1, row.copy(), row.copy(), row.copy())
