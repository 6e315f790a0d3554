"""`clustering`: how far each rule shrinks the duplicates between micro-batches, and how long it takes.

Real KuaiRand-Pure rows with user and video as keys (batches of 4,096, 8 micro-batches), the same rows with every
feature, and Criteo's synthetic twin (26 features, batches of 2,048). Beside the rules stands the best sort by one
feature, chosen anew for every batch. Prediction: growing by overlap 0.70 to 0.75 where the best sort has 0.6, exchanges
0.05 more; 10 ms; K-means as the sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nestlab.batch import Batch
from nestlab.batching import ClusteringRule, SampleKeys, cost, reduction, rule, sample_keys
from nestlab.benchmarks.timing import interleave
from nestlab.data import open_dataset
from nestlab.paths import data_root

_ROOTS = ("datasets", "../shared/data", "../../shared/data")
_MAIN = "kuairand-pure, user and video"


@dataclass(frozen=True)
class Scale:
    """At most `batches` full batches of each data set, evenly spread over its training split, `repeats` timed runs."""

    batches: int = 16
    repeats: int = 5
    batch: int = 4096
    criteo_batch: int = 2048
    criteo_rows: int = 20_000
    parts: int = 8
    roots: tuple[str, ...] = _ROOTS


def run(scale: Scale | None = None) -> dict:
    """Measures; about 20 seconds at the default scale. One thread."""
    scale = scale or Scale()
    rules = {name: rule(name) for name in ("greedy", "kmeans")}
    rows = []
    for data, batches, features in _sources(scale):
        rows += _measure(data, [(batch, _keys(batch, features)) for batch in batches], rules, scale)
    found = {row["rule"]: row for row in rows if row["data"] == _MAIN}
    summary = {
        "data": _MAIN if found else f"{_MAIN}: not there; the twin's figures are in the rows",
        "reduction": found.get("greedy", {}).get("reduction"),
        "reduction_best_sort": found.get("best sort", {}).get("reduction"),
        "reduction_kmeans": found.get("kmeans", {}).get("reduction"),
        "milliseconds": found.get("greedy", {}).get("milliseconds"),
        "cpu_milliseconds": found.get("greedy", {}).get("cpu_ms"),
        "parts": scale.parts,
        "threads": 1,
    }
    return {"bench": "clustering", "how": "measured", "rows": rows, "summary": summary}


def _sources(scale: Scale) -> list[tuple[str, list[Batch], tuple[str, ...] | None]]:
    """Data, batches, and the features that count; KuaiRand is left out where it is not there."""
    twin = open_dataset("criteo-synth", rows=scale.criteo_rows)
    sources = [("criteo-synth, 26 features", _spread(twin, scale.criteo_batch, scale), None)]
    root = next((root for name in scale.roots if ((root := data_root(name)) / "KuaiRand-Pure").is_dir()), None)
    if root is not None:
        batches = _spread(open_dataset("kuairand-pure", root), scale.batch, scale)
        sources.insert(0, (_MAIN, batches, ("user_id", "video_id")))
        sources.insert(1, (f"kuairand-pure, {len(batches[0].features)} features", batches, None))
    return sources


def _spread(dataset, size: int, scale: Scale) -> list[Batch]:
    loader = dataset.batches("train", size, drop_last=True)
    wanted = set(np.linspace(0, len(loader) - 1, min(scale.batches, len(loader))).astype(int).tolist())
    return [batch for number, batch in enumerate(loader) if number in wanted]


def _keys(batch: Batch, features: tuple[str, ...] | None) -> SampleKeys:
    return sample_keys(batch, None if features is None else {name: name for name in features})


def _measure(
    data: str, batches: list[tuple[Batch, SampleKeys]], rules: dict[str, ClusteringRule], scale: Scale
) -> list[dict]:
    """A row a way of ordering: medians over the batches, the worst and the best of them."""
    sorts = [_best_sort(batch, keys, scale.parts) for batch, keys in batches]
    rows = [_row(data, "best sort", batches, sorts, None, scale)]
    for name, chosen in rules.items():
        timed = [_timed(lambda k=keys, r=chosen: r.order(k, scale.parts), scale.repeats) for _, keys in batches]
        rows.append(_row(data, name, batches, [o for o, _ in timed], [t for _, t in timed], scale))
    return rows


def _row(data, name, batches, orders, seconds, scale: Scale) -> dict:
    parts = scale.parts
    reached = [reduction(keys, parts, order) for (_, keys), order in zip(batches, orders, strict=True)]
    costs = [cost(keys, parts, order) for (_, keys), order in zip(batches, orders, strict=True)]
    timing = {}
    if seconds is not None:
        clock, cpu = 1e3 * np.array(seconds).T
        low, middle, high = np.percentile(clock, [10, 50, 90]).round(2).tolist()
        timing = {"milliseconds": middle, "p10": low, "p90": high, "cpu_ms": round(float(np.median(cpu)), 2)}
    return {
        **{"data": data, "rule": name, "reduction": round(float(np.median(reached)), 3)},
        **{"worst": round(min(reached), 3), "best": round(max(reached), 3)},
        "cost": int(np.median(costs)),
        "time_order": int(np.median([cost(keys, parts) for _, keys in batches])),
        "bound": int(np.median([keys.unique for _, keys in batches])),
        **timing,
        **{"batch": batches[0][0].size, "parts": parts, "batches": len(batches)},
    }


def _timed(work: Callable[[], np.ndarray], repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """What it returns, and the medians [2] of its seconds, by the clock and of this thread's CPU."""
    seconds = interleave({"": work}, repeats, warm_up=0)[""]
    return work(), np.median(seconds, axis=0)


def _best_sort(batch: Batch, keys: SampleKeys, parts: int) -> np.ndarray:
    """The cheapest of the orders by one feature that has at most one id a sample."""
    starts, lengths = batch.offsets().numpy(), batch.feature_lengths().numpy()
    orders = []
    for f in range(len(batch.features)):
        if lengths[f].max() <= 1:
            values = np.full(batch.size, -1, dtype=np.int64)
            run = slice(starts[f * batch.size], starts[(f + 1) * batch.size])
            values[lengths[f] == 1] = batch.ids.numpy()[run]
            orders.append(np.argsort(values, kind="stable"))
    return min(orders, key=lambda order: cost(keys, parts, order))
