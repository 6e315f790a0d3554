"""`index`: look-up, insertion and deduplication, against torch.unique and numpy.unique in the same run.

4 million distinct 64-bit ids in one table, a million look-ups, drawn uniformly and by Zipf 1.05 over shuffled ids. All
of ours on one thread; torch on one thread and on its own number of threads, both stated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from nestlab.benchmarks.timing import interleave, rate
from nestlab.embedding import KeySet, deduplicate, warm_up
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex

DISTRIBUTIONS = ("uniform", "zipf 1.05")
_CALL = 100_000  # keys a call of insertion: about the unique keys of a batch


@dataclass(frozen=True)
class Scale:
    """How much is measured: `distinct` keys, `lookups` drawn from them, `repeats` timed rounds."""

    distinct: int = 4_000_000
    lookups: int = 1_000_000
    repeats: int = 15


def run(scale: Scale | None = None) -> dict:
    """Measures; about half a minute at the default scale. Rates are million keys a second."""
    scale = scale or Scale()
    warm_up()
    threads = torch.get_num_threads()
    rows: list[dict] = []
    try:
        for distribution in DISTRIBUTIONS:
            ids, order, stream = _keys(distribution, scale)
            rows += _insertion(distribution, ids[order], scale)
            rows += _reading(distribution, ids, stream, threads, scale)
    finally:
        torch.set_num_threads(threads)
    return {"bench": "index", "how": "measured", "rows": rows, "summary": _summary(rows, scale, threads)}


def _keys(distribution: str, scale: Scale) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct ids, hottest first; the order in which an endless stream shows them; the ids of the look-ups."""
    rng = np.random.default_rng(7)
    ids = rng.permutation(scale.distinct) * np.int64(-7046029254386353131)  # odd: distinct over all 64 bits
    if distribution == "uniform":
        return ids, rng.permutation(scale.distinct), ids[rng.integers(0, scale.distinct, scale.lookups)]
    weights = 1.0 / np.arange(1, scale.distinct + 1) ** 1.05
    order = np.argsort(rng.exponential(size=scale.distinct) / weights)
    cumulated = np.cumsum(weights)
    return ids, order, ids[np.searchsorted(cumulated, rng.random(scale.lookups) * cumulated[-1])]


def _row(distribution: str, work: str, threads: int, seconds: np.ndarray, count: int) -> dict:
    return {"distribution": distribution, "work": work, "threads": threads, **rate(seconds, count)}


def _insertion(distribution: str, ids: np.ndarray, scale: Scale) -> list[dict]:
    """Into an index with room for all, its memory touched before; and from empty, with every growth and page fault."""
    calls = [KeySet(part, [0, part.size]) for part in np.array_split(ids, -(-ids.size // _CALL))]
    sized = KeyIndex(ids.size)

    def insert(index: KeyIndex) -> None:
        rows = Rows(ids.size, 4)  # rows are given out, no record is written
        for keys in calls:
            index.find_or_insert(keys, rows)

    def clear(name: object) -> None:
        if name == "insert":
            sized.slots[:] = 0
            sized._count = 0

    work: dict[str, Callable[[], object]] = {
        "insert": lambda: insert(sized),
        "insert, growing from empty": lambda: insert(KeyIndex()),
    }
    taken = interleave(work, repeats=min(5, scale.repeats), warm_up=1, before=clear)
    return [_row(distribution, name, 1, seconds, ids.size) for name, seconds in taken.items()]


def _reading(distribution: str, ids: np.ndarray, stream: np.ndarray, threads: int, scale: Scale) -> list[dict]:
    index, keys = KeyIndex(ids.size), KeySet(stream, [0, stream.size])
    index.find_or_insert(KeySet(ids, [0, ids.size]), Rows(ids.size, 4))
    tensor, whole = torch.from_numpy(stream), np.array([0, stream.size])
    work: dict[tuple[str, int], Callable[[], object]] = {  # numpy first: torch's worker thread spins on after its turn
        ("numpy.unique", 1): lambda: np.unique(stream, return_inverse=True),
        ("look-up", 1): lambda: index.find(keys),
        ("deduplicate", 1): lambda: deduplicate(stream, whole),
    }
    for count in sorted({1, threads}):
        work["torch.unique", count] = lambda: torch.unique(tensor, return_inverse=True)
    taken = interleave(work, scale.repeats, before=lambda name: torch.set_num_threads(name[1]))
    return [_row(distribution, name, count, seconds, stream.size) for (name, count), seconds in taken.items()]


def _summary(rows: list[dict], scale: Scale, threads: int) -> dict:
    """The worse of the two distributions for each figure."""

    def rates(work: str, count: int = 1) -> np.ndarray:
        return np.array([r["mkeys_s"] for r in rows if r["work"] == work and r["threads"] == count])

    dedup = rates("deduplicate")
    figures = {
        "lookup_mkeys_s": rates("look-up"),
        "insert_mkeys_s": rates("insert"),
        "insert_growing_mkeys_s": rates("insert, growing from empty"),
        "dedup_mkeys_s": dedup,
        "dedup_vs_torch_unique": dedup / rates("torch.unique", threads),
        "dedup_vs_torch_unique_1_thread": dedup / rates("torch.unique"),
        "dedup_vs_numpy_unique": dedup / rates("numpy.unique"),
    }
    worse = {name: round(float(values.min()), 2) for name, values in figures.items()}
    return {**worse, "distinct": scale.distinct, "lookups": scale.lookups, "threads": 1, "torch_threads": threads}
