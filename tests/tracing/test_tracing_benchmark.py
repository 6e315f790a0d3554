"""The tracing benchmark at a tiny scale: its shape, not its figures, which a busy machine cannot promise."""

from __future__ import annotations

import json

from nestlab import benchmarks
from nestlab.benchmarks import tracing


def test_the_tracing_benchmark_has_every_summary_key():
    result = tracing.run(tracing.Scale(pairs=4, events=200, batch_size=64, data_rows=2_000))
    assert (result["bench"], result["how"]) == ("tracing", "measured")
    assert {"overhead_share", "overhead_error", "event_ns", "count_ns", "limit"} <= set(result["summary"])
    assert result["summary"]["event_ns"] > 0 and result["summary"]["limit"] == 0.01
    assert result["rows"][0]["threads"] == 1
    json.dumps(result, allow_nan=False)
    assert "tracing" in benchmarks.names()
