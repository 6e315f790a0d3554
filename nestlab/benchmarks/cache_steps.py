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
from nestlab.embedding import EmbeddingStore, KeySet, TableConfig, Tiers, optimizer
from nestlab.embedding.device.slot_memory import slot_memory
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques


@dataclass(frozen=True)
class GatherScale:
    """`unique` of `slots` records of `dim` weights and as many states; each read `expansion` times on average.

    The expansions are those of KuaiRand-Pure's videos at 256, 1,024 and 4,096 rows a batch and of Criteo's tables at
    4,096; the summary takes the second. From about 4 on, reading scattered slots again costs more than a compact copy
    of them. The slots lie over huge pages, as the cache's do: over small ones the first way loses most of its gain.
    """

    slots: int = 1_000_000
    dim: int = 64
    unique: int = 50_000
    expansions: tuple[float, ...] = (1.2, 1.55, 2.5, 6.4)
    repeats: int = 15


def measure_gathers(scale: GatherScale) -> tuple[list[dict], dict]:
    """Rows [n, dim] for n positions: one index_select over composed slots, or rows first and then their expansion."""
    rng = np.random.default_rng(2)
    records = slot_memory(scale.slots, torch.empty(0, 2 * scale.dim), False, torch.device("cpu"))
    weights = records.uniform_()[:, : scale.dim]
    slots = torch.from_numpy(rng.choice(scale.slots, scale.unique, replace=False))
    rows = []
    for expansion in scale.expansions:
        positions = torch.from_numpy(rng.integers(0, scale.unique, int(expansion * scale.unique)))
        work = _ways(weights, slots, positions)
        assert torch.equal(work["one"](), work["two"]())
        taken = interleave(work, scale.repeats)
        known = {"threads": 1, "unique": scale.unique, "positions": positions.numel(), "dim": scale.dim}
        rows.append({"work": "gather, two / one", **known, **_ratio(taken["two"], taken["one"])})
    return rows, {"gather_expand_vs_torch": round(rows[1]["cpu_ratio"], 2)}


def _ways(weights: Tensor, slots: Tensor, positions: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        "one": lambda: weights.index_select(0, slots.index_select(0, positions)),
        "two": lambda: weights.index_select(0, slots).index_select(0, positions),
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
