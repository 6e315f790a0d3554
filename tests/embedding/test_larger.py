"""A table larger than the host memory it may use, at the size of a test; `nestlab bench larger` is the whole of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from nestlab.benchmarks import larger
from nestlab.embedding import Adagrad, EmbeddingStore, TableConfig


def test_a_table_eight_times_as_large_as_its_memory_is_trained_row_by_row():
    """Broken on purpose: with `BufferPool._write_down` writing nothing, rows read zeros and the difference is 0.1."""
    result = larger.run(larger.Scale(rows=1 << 16, capacity=1 << 22, batch=1 << 12, compared=5_000))
    row, summary = result["rows"][0], result["summary"]
    assert row["table_bytes"] == 8 * row["host_capacity_bytes"]
    assert summary["every_row_changed"] and row["least_touched"] == 1
    assert row["records_written"] > (1 << 16) * 7 // 8 and row["records_read"] > 0
    assert summary["largest_difference_weight"] < 2e-7
    assert summary["largest_difference_state"] == 0.0
    assert summary["peak_anonymous_bytes"] > 0 and row["memory_samples"] > 1


def test_a_wrong_state_is_seen():
    """Weights are equal after one step whatever the state is: only the states' own comparison can tell."""
    store = EmbeddingStore([TableConfig("t", 64)], Adagrad(lr=0.1), seed=0)
    scale = larger.Scale(rows=100, batch=100, again=0, compared=100)
    larger._train(store, np.arange(100), 1)
    store.hosts[0].memory.array[:100, 64 + 5] += 0.5
    assert larger._differences(store, np.ones(100, np.int8), scale) == (pytest.approx(0, abs=2e-7), 0.5)


def test_a_peak_within_a_step_is_seen():
    """With one sample at the end alone the array would be gone by then."""
    with larger._Peak() as peak:
        before = peak.bytes["anonymous"]
        held = np.ones(1 << 24)  # 128 MiB
        wait = time.monotonic() + 10
        seen = peak.samples
        while peak.samples < seen + 3 and time.monotonic() < wait:
            time.sleep(0.005)
        del held
    assert peak.bytes["anonymous"] > before + (100 << 20)
