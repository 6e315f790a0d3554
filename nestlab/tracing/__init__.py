"""What ran when, what waited for what, and which stage kept the compute lane idle.

Imports nothing of the trainer: stages and lanes are plain strings here. Plots, and what gathers the traces of several
ranks, are imported when first asked for, so that who only records waits for neither matplotlib nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nestlab.tracing.breakdown import Breakdown, breakdowns, step_table
from nestlab.tracing.chrome import read_chrome_trace, write_chrome_trace
from nestlab.tracing.events import Anchor, Recorder
from nestlab.tracing.exposed import OVERHEAD, Stretch, exposed_ns, exposed_stretches, exposed_time
from nestlab.tracing.merging import merge
from nestlab.tracing.summary import lane_times, summary
from nestlab.tracing.trace import COMPUTE, WHOLE, Event, Sample, Trace

if TYPE_CHECKING:
    from nestlab.tracing.gather import clock_offset, gather_traces
    from nestlab.tracing.plot import plot_exposed, plot_timeline

__all__ = [
    "COMPUTE",
    "OVERHEAD",
    "WHOLE",
    "Anchor",
    "Breakdown",
    "Event",
    "Recorder",
    "Sample",
    "Stretch",
    "Trace",
    "breakdowns",
    "clock_offset",
    "exposed_ns",
    "exposed_stretches",
    "exposed_time",
    "gather_traces",
    "lane_times",
    "merge",
    "plot_exposed",
    "plot_timeline",
    "read_chrome_trace",
    "step_table",
    "summary",
    "write_chrome_trace",
]


_LATER = {"plot_exposed": "plot", "plot_timeline": "plot", "clock_offset": "gather", "gather_traces": "gather"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"nestlab.tracing.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
