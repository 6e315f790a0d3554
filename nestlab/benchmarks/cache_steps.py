"""Reading slots, and whole training steps with a slot cache beside the same steps without a device tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.benchmarks.timing import interleave
from nestlab.embedding import EmbeddingStore, KeySet, TableConfig, Tiers, deduplicate, optimizer
from nestlab.embedding.residency import Residency
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques


@dataclass(frozen=True)
class GatherScale:
    """A batch of `unique` keys, all resident in a full cache of `slots`; each is read `expansion` times on average.

    A record is `dim` weights and as many states. The expansions are those of KuaiRand-Pure's videos at 256, 1,024 and
    4,096 rows a batch and of Criteo's tables at 4,096; the summary takes `reported`, the real batch of 1,024 rows.
    """

    slots: int = 1_000_000
    dim: int = 64
    unique: int = 50_000
    expansions: tuple[float, ...] = (1.2, 1.55, 2.5, 6.4)
    reported: float = 1.55
    repeats: int = 25


def measure_gathers(scale: GatherScale) -> tuple[list[dict], dict]:
    """Rows [n, dim] for n positions: the store's own gather, or the unique rows first and then their expansion."""
    rng = np.random.default_rng(2)
    store, ids = _full_cache(scale)
    residency = store.prepare([_table_of(rng.choice(ids, scale.unique, replace=False))])
    store.commit(residency)
    assert store.counters.misses == scale.slots, "every row of the batch is resident"
    slots = torch.from_numpy(store.tiers[0].map.slots_of(residency.groups[0].rows).astype(np.int64))
    rows, ratios = [], {}
    for expansion in scale.expansions:
        work = _ways(store, residency, slots, _positions(rng, scale.unique, expansion))
        assert torch.equal(work["library"](), work["torch"]())
        taken = interleave(work, scale.repeats)
        ratios[expansion] = _ratio(taken["torch"], taken["library"])
        count = int(expansion * scale.unique)
        known = {"threads": 1, "unique": scale.unique, "positions": count, "dim": scale.dim}
        rows.append({"work": "gather, two index_selects / the store's", **known, **ratios[expansion]})
    return rows, {"gather_expand_vs_torch": round(ratios[scale.reported]["cpu_ratio"], 2)}


def _full_cache(scale: GatherScale) -> tuple[EmbeddingStore, np.ndarray]:
    """A store whose slots are all taken, and the ids in them."""
    tiers = Tiers(device_tier="slot_cache", cache_slots=scale.slots)
    store = EmbeddingStore([TableConfig("t", scale.dim)], optimizer("adagrad", lr=0.01), tiers=tiers)
    ids = np.arange(scale.slots)
    for first in range(0, scale.slots, scale.unique):
        residency = store.prepare([_table_of(ids[first : first + scale.unique])])
        for call in (store.commit, store.writeback, store.release):
            call(residency)
    return store, ids


def _table_of(ids: np.ndarray) -> KeySet:
    return KeySet(ids, [0, ids.size])


def _positions(rng: np.random.Generator, unique: int, expansion: float) -> Tensor:
    """[expansion · unique] int64 that name every unique row, which are numbered by first appearance: as in a batch."""
    again = rng.integers(0, unique, int(expansion * unique) - unique)
    drawn = rng.permutation(np.concatenate([np.arange(unique), again]))
    return torch.from_numpy(deduplicate(drawn, [0, drawn.size])[2])


def _ways(
    store: EmbeddingStore, residency: Residency, slots: Tensor, positions: Tensor
) -> dict[str, Callable[[], Tensor]]:
    weights = store.tiers[0].slots[:, : store.groups[0].dim]
    return {
        "library": lambda: store.gather(residency, 0, positions),
        "torch": lambda: weights.index_select(0, slots).index_select(0, positions),
    }


@dataclass(frozen=True)
class StepScale:
    """DLRM over `tables` tables of one feature each, one id a sample and table, Adagrad on the rows.

    Ids are drawn evenly from `hot` ids a table, but for a share `cold` from the others; the cache has room for the hot
    ids and a sixth more, which gives about 99 % hits; what it gave is in the rows.
    """

    batch_size: int = 2048
    tables: int = 8
    dim: int = 32
    hot: int = 12_000
    distinct: int = 100_000
    cold: float = 0.01
    policy: str = "lru"
    warm: int = 60
    pairs: int = 60


def measure_steps(scale: StepScale) -> tuple[list[dict], dict]:
    """Steps in turns, the same batch with one and with the other; `step_overhead` by the CPU seconds of the one thread.

    By the clock it stands beside: neighbours on the machine are in that.
    """
    slots = scale.tables * scale.hot * 7 // 6
    flags = Techniques(device_tier="slot_cache", cache_slots=slots, cache_policy=scale.policy)
    pipelines = [_pipeline(scale, Techniques()), _pipeline(scale, flags)]
    rng = np.random.default_rng(3)
    for number in range(scale.warm):  # more cold ids at first: the cache is to be full
        batch = _batch(scale, rng, 0.05 if number < scale.warm // 2 else scale.cold)
        for pipeline in pipelines:
            pipeline.progress(iter([batch]))
    counters = pipelines[1].model.embedding.counters
    before = counters.hits, counters.misses
    seconds = np.array([_pair(pipelines, _batch(scale, rng, scale.cold), pair) for pair in range(scale.pairs)])
    hits, misses = counters.hits - before[0], counters.misses - before[1]
    known = {"threads": 1, "policy": scale.policy, "slots": slots, "hits": round(hits / (hits + misses), 4)}
    row = {"work": "step, slot_cache / direct", **known, **_ratio(seconds[:, 1], seconds[:, 0])}
    row |= {"dense": "DLRM 128-64, 128-64", "unique_keys": (hits + misses) // scale.pairs}
    return [row], {
        "step_overhead": round(row["cpu_ratio"], 3),
        "step_overhead_by_clock": round(row["ratio"], 3),
        "step_hits": row["hits"],
        "step_policy": scale.policy,
    }


def _pair(pipelines: list[Pipeline], batch: Batch, pair: int) -> np.ndarray:
    """[2, 2]: Direct's and the cache's seconds, by the clock and of this thread; who is first alternates."""
    seconds = np.zeros((2, 2))
    for which in (0, 1) if pair % 2 else (1, 0):
        start, start_cpu = time.perf_counter(), time.thread_time()
        pipelines[which].progress(iter([batch]))
        seconds[which] = time.perf_counter() - start, time.thread_time() - start_cpu
    return seconds


def _pipeline(scale: StepScale, flags: Techniques) -> Pipeline:
    """A model whose tables have all their rows."""
    names = [f"t{i}" for i in range(scale.tables)]
    tables = [TableConfig(name, scale.dim) for name in names]
    store = EmbeddingStore(tables, optimizer("adagrad", lr=0.01), tiers=Tiers.of(flags))
    host, ids = store.hosts[0], np.arange(scale.distinct)
    records = np.full((ids.size, 2 * scale.dim), 0.01, dtype=np.float32)
    for table in range(scale.tables):
        offsets = np.where(np.arange(scale.tables + 1) > table, ids.size, 0)
        host.put(KeySet(ids, offsets), records, np.zeros(ids.size, dtype=np.int32))
    model = RecModel(store, DLRM(8, names, scale.dim))
    return Pipeline(model, torch.optim.SGD(model.dense.parameters(), lr=0.01), flags)


def _batch(scale: StepScale, rng: np.random.Generator, cold: float) -> Batch:
    count = scale.tables * scale.batch_size
    ids = rng.integers(0, scale.hot, count)
    few = rng.random(count) < cold
    ids[few] = rng.integers(scale.hot, scale.distinct, int(few.sum()))
    dense = torch.from_numpy(rng.random((scale.batch_size, 8), dtype=np.float32))
    labels = torch.from_numpy((rng.random(scale.batch_size) < 0.3).astype(np.float32))
    names = tuple(f"t{i}" for i in range(scale.tables))
    return Batch(dense, names, torch.from_numpy(ids), torch.ones(count, dtype=torch.int64), labels)


def _ratio(upper: np.ndarray, lower: np.ndarray) -> dict[str, float]:
    """Of seconds [repeats, 2] (clock, CPU of this thread): the median ratio of pairs, and its spread by the clock."""
    low, middle, high = np.percentile(upper[:, 0] / lower[:, 0], [10, 50, 90]).round(3).tolist()
    cpu_low, cpu, cpu_high = np.percentile(upper[:, 1] / lower[:, 1], [10, 50, 90]).round(3).tolist()
    figures = {"ratio": middle, "p10": low, "p90": high, "cpu_ratio": cpu, "cpu_p10": cpu_low, "cpu_p90": cpu_high}
    return {**figures, "lower_ms": round(float(np.median(lower[:, 1])) * 1e3, 3), "repeats": len(upper)}
