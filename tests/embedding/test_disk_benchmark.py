"""The disk benchmark at a tiny scale: its shape, not its figures; and that what it compares does the same work."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nestlab import benchmarks
from nestlab.benchmarks import disk
from nestlab.benchmarks.disk_stores import Lmdb, Mapped, Pool, Raw, Records, Sqlite

SCALE = disk.Scale(records=2_000, width=16, warm=300, cold=50, repeats=2)
CASES = ("read_cold", "read_warm", "write_cold", "write_warm")


def test_the_disk_benchmark_has_every_summary_key(tmp_path):
    result = disk.run(SCALE, tmp_path)
    summary, rows = result["summary"], result["rows"]
    assert (result["bench"], result["how"]) == ("disk", "measured")
    assert {f"{case}_vs_raw" for case in CASES} | {f"records_s_{case}" for case in CASES} <= set(summary)
    assert all(summary[f"{case}_vs_raw"] > 0 for case in CASES) and summary["vs_sqlite_worst"] > 0
    assert ("lmdb" in {row["store"] for row in rows}) == (summary["vs_lmdb_worst"] is not None)
    assert {row["store"] for row in rows} >= {disk.OURS, disk.FILE, disk.RAW, "memory mapping", "sqlite3"}
    assert all(row["records_s"] > 0 and row["records"] == (50 if row["cache"] == "cold" else 300) for row in rows)
    assert all(row["pages_lacking"] == 0 for row in rows if row["cache"] == "warm")
    assert list(tmp_path.iterdir()) == [] and "disk" in benchmarks.names()
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("kind", [Records, Raw, Mapped, Sqlite, Lmdb])
def test_every_store_gives_back_what_was_written(kind, tmp_path):
    if kind is Lmdb:
        pytest.importorskip("lmdb")
    rng = np.random.default_rng(0)
    data = rng.standard_normal((500, 16), dtype=np.float32)
    store = kind(tmp_path, data.copy())
    rows, frames = rng.permutation(500)[:90], rng.permutation(90)
    written, read = rng.standard_normal((90, 16), dtype=np.float32), np.zeros((90, 16), np.float32)
    store.read(rows, frames, read)
    assert np.array_equal(read[frames], data[rows])
    store.write(rows, frames, written)
    store.let_go()
    store.read(rows, frames, read)
    assert np.array_equal(read, written)
    untouched = np.setdiff1d(np.arange(500), rows)[:90]
    store.read(untouched, frames, read)
    assert np.array_equal(read[frames], data[untouched])
    store.let_go()


def test_a_call_of_the_pool_moves_every_record(tmp_path):
    """Else the pool would be timed at work it did not do. Broken on purpose: with rows that were there before."""
    data = np.random.default_rng(0).standard_normal((500, 16), dtype=np.float32)
    store = Pool(Records(tmp_path, data).file, data, 100)
    pool, nothing = store.pool, np.empty(0, np.int64)
    assert np.array_equal(pool.copy(np.arange(500)).numpy(), data)
    store.fill(np.arange(100), changed=False)
    before = pool.promoted, pool.demoted
    store.read(np.arange(100, 200), nothing, data)
    assert (pool.promoted, pool.demoted) == (before[0] + 100, before[1])
    store.fill(np.arange(200, 300), changed=True)
    store.write(np.arange(300, 400), nothing, data)
    assert (pool.promoted, pool.demoted) == (before[0] + 200, before[1] + 100)
