"""Stores that are trained, saved and loaded by the tests of checkpoints, in one process and in one that is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from nestlab.embedding import EmbeddingStore, KeySet, LazyAdam, StepInfo, TableConfig, Tiers
from nestlab.embedding.checkpoint import read_manifest, save
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.sharding import owner

INT64 = np.iinfo(np.int64)
TABLES = (TableConfig("a", 4), TableConfig("b", 4, init_bound=0.3), TableConfig("c", 3))
AGE = FeatureRules(evict="age", evict_after=4, evict_every=10)
COUNTED = FeatureRules(admit="count", admit_threshold=3, evict="score", evict_share=0.2, evict_every=10)
SKETCHED = FeatureRules(
    admit="sketch", admit_threshold=3, sketch_bytes=4096, evict="age", evict_after=6, evict_every=10
)
SCORED = FeatureRules(admit="show_click", admit_threshold=4, evict="score", evict_share=0.2, evict_every=10)


def make(rules: FeatureRules | None = None, optimizer=None, tables=TABLES, **options) -> EmbeddingStore:
    dtype = options.pop("dtype", torch.float32)
    tiers = Tiers(features=rules or FeatureRules(), **options)
    return EmbeddingStore(tables, optimizer or LazyAdam(lr=0.05), tiers=tiers, dtype=dtype)


def ids_of(table: str, number: int) -> np.ndarray:
    """The unique ids of one batch: skewed, with ids that stay away for a while and come back; some at the edges."""
    rng = np.random.default_rng([number, len(table), ord(table[0])])
    drawn = np.concatenate([rng.zipf(1.3, 25) % 80, rng.integers(0, 15, 6) + 100 * (number // 7 % 3)])
    edges = np.array([INT64.min, INT64.max, -1])[: number % 4]
    return np.unique(np.concatenate([drawn * (2**33 + 1), edges]))


def batch(store: EmbeddingStore, number: int, shard: int = 0, of: int = 1, turned: bool = False) -> list[KeySet]:
    """What one shard gets of training batch `number`; counts and clicks depend on table, id and batch alone. `turned`:
    in the opposite order."""
    keys = []
    for group in store.groups:
        tables = [ids_of(table.name, number) for table in group.tables]
        tables = [ids[owner(ids, t.name, of) == shard] for ids, t in zip(tables, group.tables, strict=True)]
        if turned:
            tables = [ids[::-1] for ids in tables]
        ids, offsets = np.concatenate(tables), np.cumsum([0, *map(len, tables)])
        counts = np.abs(ids // 7 + number) % 3 + 1
        keys.append(KeySet(ids, offsets, counts, (counts * 0.5).astype(np.float64)))
    return keys


def train(stores: list[EmbeddingStore], first: int, last: int, turned: bool = False) -> None:
    """Batches first … last, each split over the stores as shards; gradients depend on weights, ids and batch."""
    for number in range(first, last + 1):
        for shard, store in enumerate(stores):
            residency = store.prepare(batch(store, number, shard, len(stores), turned))
            store.evict()
            store.commit(residency)
            store.apply(
                residency, [_grads(store, residency, g, number) for g in range(len(store.groups))], StepInfo(number)
            )
            store.writeback(residency)
            store.release(residency)


def _grads(store, residency, group: int, number: int) -> torch.Tensor:
    ids = torch.from_numpy((residency.groups[group].keys.ids % 1009).astype(np.float64) / 1009)
    weights = store.gather(residency, group)
    return (weights * 0.5 + (ids + 0.01 * number)[:, None].to(weights.dtype)).detach()


def everything(stores: list[EmbeddingStore]) -> dict[str, np.ndarray]:
    """All that training depends on, over all shards, in a canonical order."""
    found: dict[str, np.ndarray] = {}
    for number, group in enumerate(stores[0].groups):
        for i, table in enumerate(group.tables):
            parts = [_table(store, number, i) for store in stores]
            order = np.argsort(np.concatenate([part["ids"] for part in parts]))
            for name in parts[0]:
                found[f"{table.name}.{name}"] = np.concatenate([part[name] for part in parts])[order]
        if (rule := stores[0].hosts[number].admission) is not None:
            merged = type(rule).merge([store.hosts[number].admission.state() for store in stores])
            found |= {f"{number}.{name}": array for name, array in merged.items()}
    found["counts"] = np.array(sorted({(store.counters.batches, store.last_step) for store in stores}))
    return found


def _table(store: EmbeddingStore, group: int, table: int) -> dict[str, np.ndarray]:
    host = store.hosts[group]
    arrays = {name: t.numpy() for name, t in store.export(host.group.tables[table].name).items()}
    _, rows = host.index.entries(table)
    arrays["last_seen"] = host.rows.last_seen[rows]
    if host.eviction is not None and host.eviction.stats is not None:
        arrays |= host.eviction.stats.state(rows)
    return arrays


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes(), name


def saves_and_states(folder: Path) -> Iterator[tuple[int, EmbeddingStore]]:
    """Trains and saves: twice a full save, each followed by two increments. Yields after each save."""
    store = make(AGE)
    for number in range(1, 7):
        train([store], 8 * number - 7, 8 * number)
        save(store, folder, incremental=number % 3 != 1)
        yield number, store


def save_for_ever(folder: str) -> None:
    """For a process that will be killed: the same, again and again, a line on standard output after each save."""
    while True:
        store, number = make(AGE), 0
        while number < 6:
            number += 1
            train([store], 8 * number - 7, 8 * number)
            save(store, folder, incremental=number % 3 != 1)
            print(read_manifest(folder).last.number, flush=True)


if __name__ == "__main__":
    save_for_ever(sys.argv[1])
