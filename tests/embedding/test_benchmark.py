"""The index benchmark at a tiny scale: its shape, not its figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nestlab import benchmarks
from nestlab.benchmarks import index
from nestlab.errors import UserError


def test_the_index_benchmark_has_every_summary_key():
    result = index.run(index.Scale(distinct=20_000, lookups=5_000, repeats=2))
    assert (result["bench"], result["how"]) == ("index", "measured")
    assert {"lookup_mkeys_s", "insert_mkeys_s", "dedup_mkeys_s", "dedup_vs_torch_unique"} <= set(result["summary"])
    assert {row["distribution"] for row in result["rows"]} == set(index.DISTRIBUTIONS)
    assert all(row["mkeys_s"] > 0 and row["threads"] >= 1 for row in result["rows"])
    json.dumps(result)


def test_unknown_benchmarks_are_refused_before_anything_heavy_is_imported():
    assert "index" in benchmarks.names()
    with pytest.raises(UserError, match="no benchmark is called 'indx'"):
        benchmarks.run("indx")
    code = "import sys, nestlab.benchmarks as b; b.names(); sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
