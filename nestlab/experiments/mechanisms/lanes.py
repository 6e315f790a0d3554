"""Schedules side by side, lane by time: the same batches, the same durations, another order."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nestlab import plotting
from nestlab.pipeline.shape import BY_PART
from nestlab.tracing import Event, Trace
from nestlab.tracing.plot import ABBREVIATIONS

_ROW = 0.21  # inches a lane
_SHADES = (0.0, 0.45, 0.75)  # of white in the lane's colour, batch by batch: neighbours differ in grey too


def side_by_side(traces: dict[str, Trace], title: str) -> Figure:
    """A panel a schedule over one axis of time; in each bar its stage and batch, below the panel when all are done."""
    end = max(_end(trace) for trace in traces.values())
    heights = [len(trace.lanes) for trace in traces.values()]
    with plotting.style():
        figure = plotting.new_figure(13.5, 1.0 + _ROW * sum(heights) + 0.5 * len(traces))
        panels = figure.subplots(len(traces), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (name, trace) in zip(panels, traces.items(), strict=True):
            _draw(axes, name, trace, end)
        panels[-1].set_xlabel("ms of a virtual clock")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _draw(axes: Axes, name: str, trace: Trace, end: float) -> None:
    rows = {lane: i for i, lane in enumerate(trace.lanes)}
    axes.set_xlim(0, end * 1.01)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(length=0)
    axes.grid(False, axis="y")
    axes.set_title(f"{name}: {len(trace.batches)} batches in {_end(trace):.0f} ms", weight="bold")
    axes.axvline(_end(trace), color=plotting.INK, linewidth=1.0, linestyle=(0, (3, 2)))
    per_ms = axes.figure.get_figwidth() * 0.9 / end  # inches
    parted = any(event.part > 0 for event in trace.events)
    for event in trace.events:
        _bar(axes, event, rows[event.lane], per_ms, parted)
    for artist in (*axes.patches, *axes.texts):  # all inside: measuring each takes most of the time
        artist.set_in_layout(False)


def _bar(axes: Axes, event: Event, row: int, per_ms: float, parted: bool) -> None:
    begin, width = event.start_ns / 1e6, event.duration_ns / 1e6
    face = plotting.pale(plotting.lane_colour(event.lane), _SHADES[event.batch % len(_SHADES)])
    axes.add_patch(Rectangle((begin, row - 0.42), width, 0.84, facecolor=face, edgecolor=plotting.INK, linewidth=0.4))
    short = ABBREVIATIONS.get(event.stage, event.stage)
    number = f"{event.batch}.{event.part}" if event.stage in BY_PART and parted else str(event.batch)
    for text in (f"{short} {number}", number):
        if len(text) * 0.054 + 0.02 < width * per_ms:  # inches a letter at this size
            axes.text(
                begin + width / 2,
                row + 0.03,
                text,
                ha="center",
                va="center",
                fontsize=6.5,
                color=plotting.text_colour(face),
            )
            return


def _end(trace: Trace) -> float:
    """ms until the last batch is trained."""
    return max(event.end_ns for event in trace.events if event.stage == "UPDATE") / 1e6
