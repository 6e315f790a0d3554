"""Hit rates on the real KuaiRand-Pure log, by policy, beside the offline optimum.

The stream: video ids of the standard logs in the order of `time_ms` (a stable sort), batches of 256 rows. A *hit* is a
unique id of a batch whose row is resident when the batch is planned, so that an id that repeats within a batch counts
once; by accesses the rates are about five points higher. The cache has a tenth of the distinct ids, rounded down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nestlab.embedding import KeySet, deduplicate
from nestlab.embedding.device.belady import most_hits
from nestlab.embedding.device.look_ahead import LookAhead, ahead
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.device.swap import CacheTooSmall
from nestlab.paths import data_root

_ROOTS = ("datasets", "../shared/data", "../../shared/data")
_KEYS = ("clock", "lru", "lfu", "oracle", "oracle_depth", "belady")


@dataclass(frozen=True)
class Scale:
    """`rows` of the log (None: all), in batches of `batch`; a cache of `share` of the distinct ids.

    `look_ahead` is the oracle's queue. `depth` (`hit_rate_oracle_depth`) is a queue as long as the pipeline is deep in
    its deepest standard set-up, five batches in flight. When a batch is planned in the schedule `prefetched(5)`, the
    pipeline itself could know fewer, the 3 later batches that are loaded by then: the rows for 1 to 4 stand beside it.
    """

    rows: int | None = None
    batch: int = 256
    share: float = 0.1
    look_ahead: int = 200
    depth: int = 5
    roots: tuple[str, ...] = _ROOTS


def measure(scale: Scale) -> tuple[list[dict], dict]:
    """A row a policy, and hit rates in per cent; all None where the log is not there, and a row says so."""
    stream = _stream(scale)
    if stream is None:
        why = f"no KuaiRand-Pure log under {', '.join(scale.roots)}"
        return [{"work": "hit rate", "why_not": why}], {f"hit_rate_{key}": None for key in _KEYS}
    batches, distinct, accesses = stream
    slots = int(scale.share * distinct)
    runs = [("clock", 0), ("lru", 0), ("lfu", 0), *(("oracle", n) for n in (1, 2, 3, 4, scale.depth, 20))]
    runs = list(dict.fromkeys([*runs, ("oracle", scale.look_ahead)]))
    found = {run: _hit_rate(batches, slots, *run) for run in runs}
    found["belady", 0] = _best(batches, slots)
    known = {"batch": scale.batch, "slots": slots, "distinct": distinct, "accesses": accesses, "batches": len(batches)}
    rows = [
        {"work": "hit rate", "policy": policy, "look_ahead": length or None, **rates, **known}
        for (policy, length), rates in found.items()
    ]
    chosen = [
        ("clock", 0),
        ("lru", 0),
        ("lfu", 0),
        ("oracle", scale.look_ahead),
        ("oracle", scale.depth),
        ("belady", 0),
    ]
    return rows, {f"hit_rate_{key}": found[run].get("hit_rate") for key, run in zip(_KEYS, chosen, strict=True)}


def _stream(scale: Scale) -> tuple[list[KeySet], int, int] | None:
    """The batches as rows (numbers of the distinct ids), how many ids there are, and how many accesses."""
    ids = next((ids for root in scale.roots if (ids := video_ids(data_root(root))) is not None), None)
    if ids is None:
        return None
    ids = ids[: scale.rows]
    numbers = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    cuts = range(0, numbers.size, scale.batch)
    unique = [deduplicate(part, [0, part.size])[0] for part in (numbers[cut : cut + scale.batch] for cut in cuts)]
    return [KeySet(rows, [0, rows.size]) for rows in unique], int(numbers.max(initial=-1)) + 1, numbers.size


def video_ids(root: Path) -> np.ndarray | None:
    """[n] int64 of the standard logs under a root, in the order of time; None where there is none."""
    from pyarrow import csv

    from nestlab.data.kuairand_files import PURE, STANDARD, survey

    logs = survey(PURE, root).paths(STANDARD)
    if not logs:
        return None
    wanted = csv.ConvertOptions(include_columns=["time_ms", "video_id"])
    tables = [csv.read_csv(path, convert_options=wanted) for path in logs]
    time_ms, video = (np.concatenate([t[name].to_numpy() for t in tables]) for name in ("time_ms", "video_id"))
    return video[np.argsort(time_ms, kind="stable")].astype(np.int64)


def _hit_rate(batches: list[KeySet], slots: int, policy: str, length: int) -> dict:
    """Per cent of the unique ids; or what the batches would need."""
    try:
        hits = sum(_hits(batches, slots, policy, length))
    except CacheTooSmall as error:
        return {"needed_slots": error.needed}
    return {"hit_rate": round(100 * hits / sum(map(len, batches)), 2)}


def _hits(batches: list[KeySet], slots: int, policy: str, length: int) -> Iterator[int]:
    slot_map = SlotMap(slots, policy, max(length, 1), row_limit=1 << 24)
    if policy != "oracle":
        yield from (slot_map.plan(keys.ids).hits for keys in batches)
        return
    queue = LookAhead(length)
    for keys in ahead(batches, length, queue.foresee, queue.end):
        yield slot_map.plan(keys.ids, foresight=queue.advance(keys, lambda fresh: fresh.ids)).hits


def _best(batches: list[KeySet], slots: int) -> dict:
    try:
        hits = most_hits([keys.ids for keys in batches], slots)
    except ValueError:
        return {}
    return {"hit_rate": round(100 * hits / sum(map(len, batches)), 2)}
