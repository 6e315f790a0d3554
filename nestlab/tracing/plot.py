"""A trace as pictures: the timeline of a few steps, and where a step's time went."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from nestlab import plotting
from nestlab.tracing.exposed import OVERHEAD, Stretch, exposed_stretches
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, WHOLE, Event, Trace

ABBREVIATIONS = {
    "PREPARE": "PREP",
    "RETRIEVE": "RETR",
    "COMMIT": "CMT",
    "EMB_EXCHANGE": "EMB",
    "FORWARD": "FWD",
    "BACKWARD": "BWD",
    "GRAD_EXCHANGE": "GRAD",
    "TT_FORWARD": "TTF",
    "TT_EXCHANGE": "ROWS",
    "TT_GRAD_EXCHANGE": "GRAD",
    "TT_BACKWARD": "TTB",
    "CORE_REDUCE": "CORES",
    "DENSE_REDUCE": "DENSE",
    "UPDATE": "UPD",
    "WRITEBACK": "WB",
    "RELEASE": "REL",
    "DISPATCH": "DISP",
    OVERHEAD: "ovh",
}
MOST_RANKS = 4  # rows beyond these would be too thin to read
BAR, GAP_BAR = 0.8, 0.46  # heights, of a row's 1.0
_ODD_HATCH = "////"
_Choice = tuple[str, int]  # a text and its direction in degrees


@dataclass(frozen=True)
class _View:
    """What is drawn: the axes, the trace inside the window, and which row a lane of a rank has."""

    axes: Axes
    trace: Trace
    window: tuple[int, int]
    rows: dict[tuple[int, str], int]
    compute_lane: str

    def ms(self, time_ns: int) -> float:
        return (time_ns - self.window[0]) / NS_PER_MS


def plot_timeline(
    trace: Trace,
    first_batch: int | None = None,
    batches: int = 3,
    title: str | None = None,
    compute_lane: str = COMPUTE,
) -> Figure:
    """A row a lane and rank, a bar an action; below the compute lane's gaps stands what they waited for.

    The window runs from the begin of the first batch's step to the end of the last one's, and shows whatever ran in
    it, prefetches for later batches included. Bars have their lane's colour, those of odd batches are hatched.

    Args:
        first_batch: where the window begins; by default so that it lies in the middle of the trace.
        batches: how many steps it has.
        title: by default the schedule's name; the data set and how the trace was obtained are always added.
    """
    shown, window = _window(trace.only(*trace.ranks[:MOST_RANKS]), first_batch, batches, compute_lane)
    rows = _rows(shown)
    with plotting.style():
        figure = plotting.new_figure(11.0, 1.35 + 0.42 * max(2, len(rows)))
        view = _View(figure.add_subplot(), shown, window, rows, compute_lane)
        _set_up_axes(view, _title(trace, title, shown))
        labels = [_draw_event(view, event) for event in shown.events]
        labels += [_draw_gap(view, s) for s in exposed_stretches(trace.only(*shown.ranks), compute_lane)]
        _legend(figure, view)
        _keep_what_fits(figure, [label for label in labels if label])
    return figure


def _window(trace: Trace, first_batch: int | None, batches: int, lane: str) -> tuple[Trace, tuple[int, int]]:
    """The trace cut to the steps of these batches; the whole of it where it has no more than these."""
    every = sorted({step.batch for rank in trace.ranks for step in trace.step_spans(rank, lane)})
    if not every:
        end = max((event.end_ns for event in trace.events), default=trace.origin_ns + 1)
        return trace, (trace.origin_ns, end)
    first = every[max(0, (len(every) - batches) // 2)] if first_batch is None else first_batch
    chosen = [batch for batch in every if first <= batch < first + batches]
    if not chosen:
        raise ValueError(f"the trace has the steps of batches {every[0]} to {every[-1]}, none from {first} on")
    steps = [step for rank in trace.ranks for step in trace.step_spans(rank, lane) if step.batch in chosen]
    begin, end = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
    if chosen[-1] == every[-1]:
        end = max(event.end_ns for event in trace.events)  # what follows the last update, too
    return trace.between(begin, end), (begin, end)


def _rows(trace: Trace) -> dict[tuple[int, str], int]:
    used = {(event.rank, event.lane) for event in trace.events}
    order = [(rank, lane) for rank in trace.ranks for lane in trace.lanes if (rank, lane) in used]
    return {name: row for row, name in enumerate(order)}


def _title(trace: Trace, title: str | None, shown: Trace) -> str:
    first = title or f"Timeline of schedule {trace.meta.get('schedule') or 'not named'}"
    if len(shown.ranks) < len(trace.ranks):
        first += f" (ranks {shown.ranks[0]} to {shown.ranks[-1]} of {len(trace.ranks)})"
    return plotting.titled(first, trace.meta)


def _set_up_axes(view: _View, title: str) -> None:
    axes, several = view.axes, len(view.trace.ranks) > 1
    axes.set_title(title)
    axes.set_xlim(0, max(view.ms(view.window[1]), 1e-6))
    axes.set_ylim(max(1, len(view.rows)) - 0.5, -0.5)
    names = [f"rank {rank} · {lane}" if several else lane for rank, lane in view.rows]
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("time in ms")
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    for (rank, lane), row in view.rows.items():
        if row and lane == next(name for r, name in view.rows if r == rank):
            axes.axhline(row - 0.5, color=plotting.INK, linewidth=0.8)


def _draw_event(view: _View, event: Event) -> _Label | None:
    colour = plotting.lane_colour(event.lane)
    row = view.rows[event.rank, event.lane]
    box = Rectangle(
        (view.ms(event.start_ns), row - BAR / 2),
        event.duration_ns / NS_PER_MS,
        BAR,
        facecolor=colour,
        edgecolor=plotting.INK,
        linewidth=0.5,  # keeps the shortest action visible as a line
        hatch=_ODD_HATCH if event.batch % 2 else None,
    )
    view.axes.add_patch(box)
    return _Label.on(view.axes, box, _texts(event), colour)


def _texts(event: Event) -> list[_Choice]:
    """What may stand on a bar, the most telling first; a number without its stage tells nothing."""
    short = ABBREVIATIONS.get(event.stage, event.stage)
    number = f"{event.batch}" if event.part == WHOLE else f"{event.batch}.{event.part}"
    return [(f"{short} {number}", 0), (f"{short}\n{number}", 0), (short, 0), (short, 90)]


def _draw_gap(view: _View, stretch: Stretch) -> _Label | None:
    """Idle time of the compute lane, as a lower, dashed bar in the pale colour of the lane it waited for."""
    row = view.rows.get((stretch.rank, view.compute_lane))
    begin, end = max(stretch.start_ns, view.window[0]), min(stretch.end_ns, view.window[1])
    if row is None or begin >= end:
        return None
    colour = plotting.pale(plotting.lane_colour(stretch.cause.lane)) if stretch.cause else plotting.IDLE
    box = Rectangle(
        (view.ms(begin), row - GAP_BAR / 2),
        (end - begin) / NS_PER_MS,
        GAP_BAR,
        facecolor=colour,
        edgecolor=plotting.INK,
        linewidth=0.5,
        linestyle=(0, (2, 2)),
    )
    view.axes.add_patch(box)
    short = ABBREVIATIONS.get(stretch.stage, stretch.stage)
    return _Label.on(view.axes, box, [(f"← {short}", 0), (short, 0), (short, 90)], colour)


@dataclass(frozen=True)
class _Label:
    """Text on a bar, in several lengths and directions: the first that fits stays."""

    text: Text
    box: Rectangle
    choices: list[_Choice]

    @classmethod
    def on(cls, axes: Axes, box: Rectangle, choices: list[_Choice], background: str) -> _Label:
        middle = box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2
        text = axes.text(*middle, "", ha="center", va="center", fontsize=7, clip_on=True, linespacing=0.95)
        text.set_color(plotting.text_colour(background))
        if box.get_hatch():  # the strokes would run through the letters
            text.set_bbox({"facecolor": background, "edgecolor": "none", "pad": 0.6})
        return cls(text, box, choices)


def _keep_what_fits(figure: Figure, labels: list[_Label]) -> None:
    """Measured in pixels, after the layout has settled: a label is on its bar or nowhere."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what was measured stays true
    renderer = figure.canvas.get_renderer()
    for label in labels:
        room = label.box.get_window_extent(renderer)
        if room.width < 3:
            _thin(label.box)
        for text, degrees in label.choices:
            label.text.set(text=text, rotation=degrees)
            needed = label.text.get_window_extent(renderer)
            if needed.width <= room.width - 2 and needed.height <= room.height:
                break
        else:
            label.text.remove()


def _thin(box: Rectangle) -> None:
    """A bar too narrow for a face: an action is drawn as a line of its colour, a gap without a line."""
    is_gap = box.get_height() < BAR
    box.set_edgecolor("none" if is_gap else box.get_facecolor())
    box.set_linewidth(1.2)


def _legend(figure: Figure, view: _View) -> None:
    look = {"edgecolor": plotting.INK, "linewidth": 0.5}
    handles = [
        Patch(facecolor=plotting.PAPER, label="even batch", **look),
        Patch(facecolor=plotting.PAPER, hatch=_ODD_HATCH, label="odd batch", **look),
        Patch(facecolor=plotting.IDLE, linestyle=(0, (2, 2)), label="compute idle, ← what it waited for", **look),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=3, handlelength=2.6)


def plot_exposed(trace: Trace, title: str | None = None, compute_lane: str = COMPUTE) -> Figure:
    """What was slow: the compute lane's time a step, by stage; work is plain, waiting for a stage is hatched.

    Means over the steps of all ranks. The bars sum to the span, where compute actions do not overlap.
    """
    work, waits = _time_by_stage(trace, compute_lane)
    spans = [trace.span(rank) for rank in trace.ranks]
    total = max(1, sum(end - start for start, end in spans))
    steps = max(1, sum(len(trace.step_spans(rank, compute_lane)) for rank in trace.ranks))
    lanes = {event.stage: event.lane for event in trace.events}
    bars = sorted([(ns, stage, False) for stage, ns in work.items()] + [(n, s, True) for s, n in waits.items()])
    with plotting.style():
        figure = plotting.new_figure(8.0, 1.3 + 0.3 * max(2, len(bars)))
        axes = figure.add_subplot()
        for row, (ns, stage, waited) in enumerate(bars):
            colour = plotting.lane_colour(lanes[stage]) if stage in lanes else plotting.IDLE
            width = ns / NS_PER_MS / steps
            axes.barh(
                row,
                width,
                0.72,
                color=plotting.pale(colour, 0.4) if waited else colour,
                edgecolor=plotting.INK,
                linewidth=0.5,
                hatch=_ODD_HATCH if waited else None,
            )
            axes.text(width, row, f" {width:.3g} ms · {ns / total:.1%}", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [f"waiting for {stage}" if waited else stage for _, stage, waited in bars])
        axes.set_xlim(0, max([ns for ns, *_ in bars] or [1]) / NS_PER_MS / steps * 1.2 or 1)
        axes.set_xlabel("time of the compute lane in ms a step · share of the span")
        axes.grid(False, axis="y")
        axes.set_title(
            plotting.titled(title or f"What was slow: schedule {trace.meta.get('schedule')}", trace.meta, 72)
        )
    return figure


def _time_by_stage(trace: Trace, compute_lane: str) -> tuple[dict[str, int], dict[str, int]]:
    """Stage → ns on the compute lane; stage → ns that the compute lane waited for it. Stages with 0 are left out."""
    work: dict[str, int] = defaultdict(int)
    waits: dict[str, int] = defaultdict(int)
    for event in trace.events:
        if event.lane == compute_lane:
            work[event.stage] += event.duration_ns
    for stretch in exposed_stretches(trace, compute_lane):
        waits[stretch.stage] += stretch.duration_ns
    return work, waits
