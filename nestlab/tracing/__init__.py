"""What ran when, what waited for what, and which stage kept the compute lane idle.

Imports nothing of the trainer: stages and lanes are plain strings here. Plots are imported when first asked for, so
that a trainer that only records does not wait for matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestlab.tracing.chrome import read_chrome_trace, write_chrome_trace
from nestlab.tracing.events import Anchor, Recorder
from nestlab.tracing.exposed import OVERHEAD, Stretch, exposed_ns, exposed_stretches, exposed_time
from nestlab.tracing.summary import lane_times, summary
from nestlab.tracing.trace import COMPUTE, WHOLE, Event, Sample, Trace, merge

if TYPE_CHECKING:
    from nestlab.tracing.plot import plot_exposed, plot_timeline

__all__ = [
    "COMPUTE",
    "OVERHEAD",
    "WHOLE",
    "Anchor",
    "Event",
    "Recorder",
    "Sample",
    "Stretch",
    "Trace",
    "exposed_ns",
    "exposed_stretches",
    "exposed_time",
    "lane_times",
    "merge",
    "plot_exposed",
    "plot_timeline",
    "read_chrome_trace",
    "summary",
    "write_chrome_trace",
]


def __getattr__(name: str) -> Any:
    if name in ("plot_exposed", "plot_timeline"):
        from nestlab.tracing import plot

        return getattr(plot, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
