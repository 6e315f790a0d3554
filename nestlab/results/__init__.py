"""The run store: one folder a run, `results/<experiment>/<run_id>/`, and the means to list, read and compare them.

    from nestlab import results

    results.list_runs()                                      # every run, a row each
    results.load("20260301T1200").table("metrics")           # a table of one run
    results.table_over_runs("steps", experiment="quickstart")  # a table of all runs, with columns that say whose
    results.compare(results.select(results.Selection(experiment="quickstart"))).table

All of them give pandas DataFrames. This package imports neither torch nor pandas until a table is written or read, so
that a command that only creates or watches a run stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from nestlab.results.manifest import HOW, STATUSES
from nestlab.results.run import Run
from nestlab.results.starting import start
from nestlab.results.store import LoadedRun, list_runs, load

# Loaded on first use: they need numpy or more.
_LATER = {
    "Comparison": "nestlab.results.comparison",
    "Question": "nestlab.results.comparison",
    "compare": "nestlab.results.comparison",
    "repeats": "nestlab.results.seeds",
    "Selection": "nestlab.results.selection",
    "select": "nestlab.results.selection",
    "table_over_runs": "nestlab.results.join",
    "write_index": "nestlab.results.page",
}

__all__ = ["HOW", "STATUSES", "LoadedRun", "Run", "list_runs", "load", "start", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'nestlab.results' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value
