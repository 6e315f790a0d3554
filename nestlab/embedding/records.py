"""Whole records of a store by key: read and written at every tier, between batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.keyset import KeySet
from nestlab.embedding.store import EmbeddingStore


def read_records(store: EmbeddingStore, group: int, keys: KeySet) -> Tensor:
    """[U, width] the newest record of each key of a group, in host memory. Changes nothing.

    A key without a row has what a new row would start with, under admission too.

    Raises:
        RuntimeError: batches are in flight.
    """
    store.require_quiet("read_records")
    rows = store.hosts[group].find(keys)
    records = store.hosts[group].initial(keys)
    known = np.flatnonzero(rows >= 0)
    records[torch.from_numpy(known)] = store.tiers[group].newest(rows[known])
    return records


def write_records(store: EmbeddingStore, group: int, keys: KeySet, records: Tensor) -> None:
    """Makes records [U, width] those of the keys of a group, in the host tier and wherever the device tier has them.

    Keys without a row get one, whatever admission has counted of them. To an incremental checkpoint these rows have
    changed since the one before.

    Raises:
        RuntimeError: batches are in flight.
        UserError: no room for new keys.
    """
    store.require_quiet("write_records")
    host = store.hosts[group]
    portion, after_the_last_batch = len(host.memory.records), store.counters.batches + 1
    for first in range(0, len(keys), portion):
        places = np.arange(first, min(first + portion, len(keys)))
        last_seen = np.full(places.size, after_the_last_batch, dtype=np.int32)
        host.put(keys.take(places), records.numpy()[places], last_seen)
    store.tiers[group].overwrite(host.find(keys), records)
    if host.admission:
        host.admission.forget(keys)
