"""The run store: one folder a run, `results/<experiment>/<run_id>/`, and the means to list and read them.

This package imports neither torch nor pandas until a table is written or read, so that a command that only creates or
watches a run stays quick.
"""

from __future__ import annotations

from nestlab.results.manifest import HOW, STATUSES
from nestlab.results.run import Run
from nestlab.results.starting import start
from nestlab.results.store import LoadedRun, list_runs, load

__all__ = ["HOW", "STATUSES", "LoadedRun", "Run", "list_runs", "load", "start"]
