"""The clustering benchmark at a tiny scale: its shape."""

from __future__ import annotations

from nestlab import benchmarks
from nestlab.benchmarks import clustering


def test_every_summary_key_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path))
    assert "clustering" in benchmarks.names()
    scale = clustering.Scale(batches=2, repeats=1, criteo_batch=128, criteo_rows=600, roots=(str(tmp_path),))
    result = clustering.run(scale)
    assert (result["bench"], result["how"]) == ("clustering", "measured")
    assert {"reduction", "reduction_best_sort", "milliseconds"} <= set(result["summary"])
    assert [row["rule"] for row in result["rows"]] == ["best sort", "greedy", "kmeans"]
    greedy = result["rows"][1]
    assert greedy["bound"] <= greedy["cost"] < greedy["time_order"] and greedy["milliseconds"] > 0
    assert result["summary"]["reduction"] is None  # no KuaiRand there
