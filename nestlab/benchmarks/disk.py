"""`disk`: records a second through the disk tier, read and written in random order, page cache dropped and warm apart.

Beside it, in turns: raw `pread`/`pwrite` of the same records, one call each; the file mapped into memory; sqlite3; and
lmdb where it is installed (the extra `bench`). All on one thread. Nothing is forced to the disk inside the time: a
scratch file need not outlive its process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nestlab.benchmarks.disk_stores import Lmdb, Mapped, Pool, Raw, Records, Sqlite, Store
from nestlab.benchmarks.timing import interleave
from nestlab.embedding.host.file_kernels import read_records, scratch
from nestlab.errors import UserError

OURS, FILE, RAW = "buffer pool", "record file", "pread/pwrite"
_PAGE = 4096


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    `records` of `width` float32 in each store; `warm` of them a timed call with a warm page cache, `cold` without;
    `repeats` timed calls of each.
    """

    records: int = 600_000
    width: int = 128
    warm: int = 100_000
    cold: int = 5_000
    repeats: int = 5


def run(scale: Scale | None = None, folder: str | Path | None = None) -> dict:
    """Measures, in a new folder below `folder` (None: the system's for scratch), which goes afterwards.

    About a minute at the default scale on an idle machine, with 2 GB of disk and 1 GB of memory.

    Raises:
        UserError: this system cannot drop a file from its page cache.
        OSError: the disk is full.
    """
    if not hasattr(os, "posix_fadvise"):
        raise UserError("bench disk: this system cannot drop a file from its page cache; run it on Linux")
    scale = scale or Scale()
    with tempfile.TemporaryDirectory(prefix="nestlab-disk-", dir=folder) as scratch:
        return _run(Path(scratch), scale)


def _run(folder: Path, scale: Scale) -> dict:
    data = np.random.default_rng(7).standard_normal((scale.records, scale.width), dtype=np.float32)
    file = Records(folder, data)
    others: dict[str, Store] = {FILE: file, RAW: Raw(folder, data), "memory mapping": Mapped(folder, data)}
    others["sqlite3"] = Sqlite(folder, data)
    with contextlib.suppress(ImportError):
        others["lmdb"] = Lmdb(folder, data)
    rows: list[dict] = []
    for cache, count in (("warm", scale.warm), ("cold", scale.cold)):
        stores = {OURS: Pool(file.file, data, count), **others}
        for work in ("read", "write"):
            rows += _measure(stores, work, cache, count, scale)
    return {"bench": "disk", "how": "measured", "rows": rows, "summary": _summary(rows, scale)}


def _measure(stores: dict[str, Store], work: str, cache: str, count: int, scale: Scale) -> list[dict]:
    """Every store in turns, each call with records of its own; one round untimed where the page cache is warm."""
    memory = np.zeros((count, scale.width), dtype=np.float32)
    rng, asked, lacking = np.random.default_rng(11), {}, {}

    def before(name: str) -> None:
        here, other = np.split(rng.choice(scale.records, 2 * count, replace=False), 2)
        store = asked["store"] = stores[name]
        asked["rows"], asked["frames"] = here, rng.permutation(count)
        if isinstance(store, Pool):
            store.fill(other, changed=work == "write")
        store.let_go()
        _clean(store.path, drop=cache == "cold")
        lacking[name] = min(lacking.get(name, 1.0), _lacking(store.path))

    def call() -> None:
        getattr(asked["store"], work)(asked["rows"], asked["frames"], memory)

    for store in stores.values():
        store.let_go()
        _load(store.path)
    warm_up = 1 if cache == "warm" else 0
    taken = interleave(dict.fromkeys(stores, call), scale.repeats, warm_up, before)
    return [_row(work, cache, name, count, taken) | {"pages_lacking": lacking[name]} for name in stores]


def _row(work: str, cache: str, name: str, count: int, taken: dict[str, np.ndarray]) -> dict:
    """Records a second: median, 10th and 90th percentile; and against raw calls, of the same round each."""
    seconds, raw = taken[name][:, 0], taken[RAW][:, 0]
    low, middle, high = np.percentile(count / seconds, [10, 50, 90]).round().tolist()
    ratio_low, ratio, ratio_high = np.percentile(raw / seconds, [10, 50, 90]).round(3).tolist()
    return {
        "work": work,
        "cache": cache,
        "store": name,
        "threads": 1,
        "records": count,
        "records_s": middle,
        "p10": low,
        "p90": high,
        "vs_raw": ratio,
        "vs_raw_p10": ratio_low,
        "vs_raw_p90": ratio_high,
        "repeats": len(seconds),
    }


def _summary(rows: list[dict], scale: Scale) -> dict:
    """The disk tier as the trainer uses it, through the buffer pool. Against a store: the worst of its four cases."""
    by_case = {(row["store"], row["work"], row["cache"]): row for row in rows}
    cases = [(work, cache) for work in ("read", "write") for cache in ("cold", "warm")]
    ours = {f"{work}_{cache}": by_case[OURS, work, cache] for work, cache in cases}
    figures = {f"{case}_vs_raw": row["vs_raw"] for case, row in ours.items()}
    figures |= {f"records_s_{case}": row["records_s"] for case, row in ours.items()}
    for name, store in (("sqlite", "sqlite3"), ("lmdb", "lmdb"), ("mapping", "memory mapping")):
        found = [
            by_case[OURS, *case]["records_s"] / by_case[store, *case]["records_s"]
            for case in cases
            if (store, *case) in by_case
        ]
        figures[f"vs_{name}_worst"] = round(min(found), 2) if found else None
    lacking = min(row["pages_lacking"] for row in rows if row["cache"] == "cold")
    size = scale.width * 4
    return {**figures, "cold_pages_lacking": lacking, "records": scale.records, "record_bytes": size, "threads": 1}


def _load(path: str) -> None:
    """Into the page cache page by page, as random access brings it there.

    Reading in sequence would make large folios, in which a small write of ext4 goes through the blocks of megabytes.
    """
    _clean(path, drop=True)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pages = np.arange(os.fstat(descriptor).st_size // _PAGE)
    aside = np.empty(_PAGE, np.uint8)
    read_records(descriptor, _PAGE, pages, np.zeros(pages.size, np.int64), aside.ctypes.data, scratch(_PAGE))
    os.close(descriptor)


def _clean(path: str, drop: bool) -> None:
    """What was written goes to the disk, so that no call pays for the one before; and out of the page cache with it."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    if drop:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _lacking(path: str) -> float:
    """The share of a hundred pages that the page cache lacks: a file in memory, or one in use, cannot be dropped."""
    descriptor = os.open(path, os.O_RDONLY)
    pages, lacking = np.unique(np.linspace(0, os.fstat(descriptor).st_size // _PAGE - 1, 100, dtype=np.int64)), 0
    for page in pages.tolist():
        try:
            os.preadv(descriptor, [bytearray(1)], page * _PAGE, os.RWF_NOWAIT)
        except BlockingIOError:
            lacking += 1
    os.close(descriptor)
    return round(lacking / pages.size, 2)
