"""A table larger than the host memory it may use, at the size of a test; `nestlab bench larger` is the whole of it."""

from __future__ import annotations

import pytest

from nestlab.benchmarks import larger

pytestmark = pytest.mark.core


def test_a_table_eight_times_as_large_as_its_memory_is_trained_row_by_row():
    """Broken on purpose: with `BufferPool._write_down` writing nothing, rows read zeros and the difference is 0.1."""
    result = larger.run(larger.Scale(rows=1 << 16, capacity=1 << 22, batch=1 << 12, compared=5_000))
    row, summary = result["rows"][0], result["summary"]
    assert row["table_bytes"] == 8 * row["host_capacity_bytes"]
    assert summary["every_row_changed"] and row["least_touched"] == 1
    assert row["records_written"] > (1 << 16) * 7 // 8 and row["records_read"] > 0
    assert summary["largest_difference"] < 2e-7
    assert summary["peak_anonymous_bytes"] > 0
