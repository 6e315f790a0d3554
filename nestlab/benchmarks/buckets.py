"""`buckets`: two-level retrieval (JD Retail; 256 buckets in its article) against one index of the same keys.

Three questions: look-ups a second on 1 and 2 threads over 16 … 1,024 buckets; insertion of new keys, growing; and the
longest single call while a table grows from empty, which is what a growing table makes a training step wait.

Keys are distinct 64-bit ids in one table; look-ups are drawn uniformly, the worse case for caches. `KeyIndex` always
runs on one thread. Predicted before the first run: on one thread 0.85 to 0.95 of `KeyIndex` (one more look at a table
of regions, and keys picked into a block); on two threads 1.5 times `KeyIndex` where two cores are free; no effect of
the number of buckets up to 256, a few per cent at 1,024; the longest call a fifth or less of `KeyIndex`'s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from nestlab.benchmarks.timing import interleave, rate
from nestlab.embedding import KeySet, warm_up
from nestlab.embedding.buckets import BucketedIndex
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        distinct: keys in the table of look-ups; `lookups` drawn from them a call.
        grown: keys of the table that grows from empty, `call` new ones a call.
        repeats: timed rounds.
    """

    distinct: int = 4_000_000
    lookups: int = 1_000_000
    grown: int = 6_000_000
    call: int = 10_000
    buckets: tuple[int, ...] = (16, 64, 256, 1024)
    threads: tuple[int, ...] = (1, 2)
    repeats: int = 11


def run(scale: Scale | None = None) -> dict:
    """Measures; about a minute at the default scale. Rates are million keys a second, pauses milliseconds."""
    scale = scale or Scale()
    warm_up()
    rows = _lookups(scale) + _growth(scale)
    return {"bench": "buckets", "how": "measured", "rows": rows, "summary": _summary(rows, scale)}


def _ids(count: int) -> np.ndarray:
    """Distinct over all 64 bits, since the factor is odd."""
    return np.random.default_rng(7).permutation(count) * np.int64(-7046029254386353131)


def _kinds(scale: Scale) -> list[tuple[int, int]]:
    """(buckets, threads); (0, 1) stands for `KeyIndex`."""
    return [(0, 1), *((b, t) for b in scale.buckets for t in scale.threads)]


def _make(kind: tuple[int, int], keys: int) -> KeyIndex | BucketedIndex:
    return BucketedIndex(keys, *kind) if kind[0] else KeyIndex(keys)


def _lookups(scale: Scale) -> list[dict]:
    ids = _ids(scale.distinct)
    stream = ids[np.random.default_rng(8).integers(0, scale.distinct, scale.lookups)]
    table, keys = KeySet(ids, [0, ids.size]), KeySet(stream, [0, stream.size])
    indexes = {kind: _make(kind, scale.distinct) for kind in _kinds(scale)}
    for index in indexes.values():
        index.find_or_insert(table, Rows(scale.distinct, 8))
    work = {kind: (lambda index=index: index.find(keys)) for kind, index in indexes.items()}
    taken = interleave(work, scale.repeats)
    for index in indexes.values():
        if isinstance(index, BucketedIndex):
            index.close()
    return [_row("look-up", kind, seconds, scale.lookups) for kind, seconds in taken.items()]


def _row(work: str, kind: tuple[int, int], seconds: np.ndarray, count: int) -> dict:
    figures = rate(seconds, count)
    if kind[1] > 1:
        del figures["per_cpu_s"]  # of the calling thread alone
    return {"work": work, "buckets": kind[0], "threads": kind[1], **figures}


def _growth(scale: Scale) -> list[dict]:
    """From empty, in turns: the whole as a rate, and its longest call."""
    calls = [KeySet(part, [0, part.size]) for part in np.array_split(_ids(scale.grown), scale.grown // scale.call)]
    kinds = [kind for kind in _kinds(scale) if kind[0] in (0, scale.buckets[0], 256, scale.buckets[-1])]
    longest: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}

    def grow(kind: tuple[int, int]) -> None:
        index, book, worst = _make(kind, 1024), Rows(scale.grown, 8), 0.0
        for keys in calls:
            start = time.perf_counter()
            index.find_or_insert(keys, book)
            worst = max(worst, time.perf_counter() - start)
        longest[kind].append(worst)

    work = {kind: (lambda kind=kind: grow(kind)) for kind in kinds}
    repeats = min(5, scale.repeats)
    taken = interleave(work, repeats, warm_up=1)
    rows = []
    for kind, seconds in taken.items():
        low, middle, high = (np.percentile(longest[kind][1:], [10, 50, 90]) * 1e3).round(2).tolist()
        pauses = {"longest_call_ms": middle, "longest_p10": low, "longest_p90": high}
        rows.append(_row("insert, growing from empty", kind, seconds, scale.grown) | pauses)
    return rows


def _summary(rows: list[dict], scale: Scale) -> dict:
    """Ratios to `KeyIndex` at the article's 256 buckets (the middle number where the scale has none), and the best."""
    chosen = 256 if 256 in scale.buckets else scale.buckets[len(scale.buckets) // 2]
    look = {(r["buckets"], r["threads"]): r["mkeys_s"] for r in rows if r["work"] == "look-up"}
    pause = {(r["buckets"], r["threads"]): r["longest_call_ms"] for r in rows if "longest_call_ms" in r}
    summary = {"key_index_mkeys_s": look[0, 1], "buckets": chosen}
    for threads in scale.threads:
        summary[f"lookup_vs_key_index_{threads}_thread"] = round(look[chosen, threads] / look[0, 1], 2)
    first = (chosen, 1) if (chosen, 1) in pause else next(kind for kind in pause if kind[0])
    return {
        **summary,
        "key_index_longest_call_ms": pause[0, 1],
        "longest_call_ms": pause[first],
        "distinct": scale.distinct,
        "grown": scale.grown,
        "call": scale.call,
    }
