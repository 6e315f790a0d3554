"""Two timelines of a step under the links: nothing overlapped, and everything."""

from __future__ import annotations

from matplotlib.figure import Figure

from nestlab.experiments.nestpipe.cases import NESTPIPE, NONE
from nestlab.tracing import Trace, plot_timeline

SHOWN = {
    "before": (NONE, "Before: one batch, one micro-batch at a time"),
    "after": (NESTPIPE, "After: both pipelines and clustering"),
}


def plot(trace: Trace, which: str) -> Figure:
    """One step of one rank (all are alike, and rows have to be thick enough to read): the first whole one, so that what
    is prefetched beside it lies in the traced window too."""
    one = trace.only(trace.ranks[0])
    figure = plot_timeline(one, one.batches[1], 1, SHOWN[which][1])
    figure.axes[0].set_xlabel("time in ms (ovh, overhead: idle, and nothing was under way that it waited for)")
    return figure
