"""Running a notebook as a job: its parameters are checked first, papermill runs it in a process of its own, and the run
store says truthfully how it ended."""

from __future__ import annotations

from nestlab.notebook.runner import Request, run

__all__ = ["Request", "run"]
