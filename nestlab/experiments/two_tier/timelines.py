"""RecSDK's six stages and JD's five, as they ran: a row a stage of the article, a bar a batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments import claims
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.one_pass import open_stream
from nestlab.experiments.two_tier.prefetch import LINK, bytes_a_row
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import Setup
from nestlab.techniques import preset
from nestlab.tracing import Trace

# The article's names, and which of our stages each is. JD's article counts five without listing them: our reading.
_COMPUTE = ("EMB_EXCHANGE", "FORWARD", "BACKWARD", "GRAD_EXCHANGE", "DENSE_REDUCE")
STAGES = {
    "recsdk": {
        "load": ("LOAD", "H2D"),
        "All2All": ("ROUTE",),
        "post-processing": ("POST",),
        "swap computation": ("PLAN", "EVICT"),
        "host look-up, swap-out": ("RETRIEVE", "COMMIT", "WRITEBACK"),
        "compute": (*_COMPUTE, "UPDATE", "RELEASE"),
    },
    "jd": {
        "read, parse": ("LOAD", "H2D"),
        "deduplicate, route": ("ROUTE",),
        "pull from host memory": ("PREPARE", "COMMIT"),
        "forward, backward": _COMPUTE,
        "update, write back": ("UPDATE", "WRITEBACK", "RELEASE"),
    },
}
_STEPS = 12  # traced
_SHOWN = 4  # drawn
_SIX = "RS-A-005"


def traces(settings: Settings) -> dict[str, Trace]:
    """A short training of each preset, a thread a lane, over the emulated link."""
    stream = open_stream(settings)
    skip = 8 if settings.seconds < 10 else 24
    found = {}
    for name in STAGES:
        setup = Setup(preset(name), link=LINK, seed=settings.seed, device=settings.device)
        pipeline, found[name] = setup.trace(stream, _STEPS, skip)
        found[name].meta.update({"preset": name, **bytes_a_row(pipeline, found[name])})
    return found


def measure(settings: Settings) -> pd.DataFrame:
    """The events of `traces` (see `table`)."""
    return table(traces(settings))


def table(found: dict[str, Trace]) -> pd.DataFrame:
    """A row an event.

    Returns:
        columns preset, article_stage, stage (ours), lane, batch, start_ms, end_ms (from the first traced action),
        device_bytes_a_row, host_bytes_a_row (of the tables), how.
    """
    rows = []
    for name, trace in found.items():
        article = {ours: theirs for theirs, stages in STAGES[name].items() for ours in stages}
        same = {part: trace.meta[part] for part in ("device_bytes_a_row", "host_bytes_a_row", "how")}
        for event in trace.events:
            times = {
                "start_ms": (event.start_ns - trace.origin_ns) / 1e6,
                "end_ms": (event.end_ns - trace.origin_ns) / 1e6,
            }
            said = {"preset": name, "article_stage": article.get(event.stage), "stage": event.stage}
            rows.append({**said, "lane": event.lane, "batch": event.batch, **times, **same})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a preset: rows are the article's stages, bars the batches in them; shades tell neighbours apart."""
    presets = list(dict.fromkeys(frame["preset"]))
    heights = [len(STAGES[name]) for name in presets]
    with plotting.style():
        figure = plotting.new_figure(10.0, 1.4 + 0.42 * sum(heights) + 0.5 * len(presets))
        grid = figure.subplots(len(presets), 1, height_ratios=heights, squeeze=False)
        for axes, name in zip(grid[:, 0], presets, strict=True):
            _panel(axes, name, frame[frame["preset"] == name])
        grid[-1, 0].set_xlabel("time in ms; the number is the batch")
        figure.suptitle(f"{title}\nlink between host and device: {LINK}", x=0.01, ha="left", fontsize=10)
    return figure


def _panel(axes: Axes, name: str, frame: pd.DataFrame) -> None:
    begin, end = _window(frame)
    shown = frame[(frame["end_ms"] > begin) & (frame["start_ms"] < end)].copy()
    shown["left"], shown["right"] = shown["start_ms"].clip(lower=begin) - begin, shown["end_ms"].clip(upper=end) - begin
    rows = list(STAGES[name])
    for y, stage in enumerate(rows):
        of_stage = shown[shown["article_stage"] == stage]
        halved = _overlap(of_stage)
        for batch, part in of_stage.groupby("batch"):
            # Where two batches are in one stage at a time, even ones are drawn above odd ones.
            at, height = (y - 0.2 + 0.4 * (batch % 2), 0.4) if halved else (y, 0.8)
            _bars(axes, part, at, height)
            _label(axes, part, at, end - begin)
    axes.set_yticks(range(len(rows)), [f"{number}  {stage}" for number, stage in enumerate(rows, 1)])
    axes.set(xlim=(0, end - begin), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(False, axis="y")
    axes.set_title(f"preset {name}")


def _bars(axes: Axes, part: pd.DataFrame, y: float, height: float) -> None:
    colour = plotting.PALETTE[_SHADES[part["batch"].iloc[0] % len(_SHADES)]]
    widths = part["right"] - part["left"]
    axes.barh([y] * len(part), widths, height, part["left"], color=colour, edgecolor=plotting.INK, linewidth=0.3)


def _label(axes: Axes, part: pd.DataFrame, y: float, span: float) -> None:
    """The batch's number on its longest bar, or right of it where that is short."""
    longest = part.loc[(part["right"] - part["left"]).idxmax()]
    look = {"va": "center", "fontsize": 7, "clip_on": True}
    if longest["right"] - longest["left"] > 0.02 * span:
        colour = plotting.text_colour(plotting.PALETTE[_SHADES[longest["batch"] % len(_SHADES)]])
        axes.text((longest["left"] + longest["right"]) / 2, y, f"{longest['batch']}", ha="center", color=colour, **look)
    elif part["right"].max() < 0.985 * span:
        axes.text(part["right"].max() + 0.003 * span, y, f"{longest['batch']}", ha="left", **look)


def _overlap(frame: pd.DataFrame) -> bool:
    """Whether two batches are in this stage at one time."""
    spans = frame.groupby("batch")[["start_ms", "end_ms"]].agg({"start_ms": "min", "end_ms": "max"}).sort_index()
    return bool((spans["start_ms"].to_numpy()[1:] < spans["end_ms"].to_numpy()[:-1]).any())


_SHADES = ("blue", "orange", "green", "sky", "vermilion", "yellow", "purple")


def _window(frame: pd.DataFrame) -> tuple[float, float]:
    """From the update of one batch to that of `_SHOWN` batches later, in the middle of the trace."""
    ends = frame[frame["stage"] == "UPDATE"].set_index("batch")["end_ms"].sort_index()
    first = max(0, (len(ends) - _SHOWN) // 2)
    return ends.iloc[first], ends.iloc[min(first + _SHOWN, len(ends) - 1)]


def in_flight(frame: pd.DataFrame) -> int:
    """The most batches that were between their LOAD and their UPDATE at one moment."""
    begun = frame[frame["stage"] == "LOAD"].groupby("batch")["start_ms"].min()
    ended = frame[frame["stage"] == "UPDATE"].groupby("batch")["end_ms"].max()
    moments: Iterable[float] = begun.to_numpy()
    return max((int(np.sum((begun <= at) & (ended.reindex(begun.index) > at))) for at in moments), default=0)


def stages_seen(frame: pd.DataFrame) -> list[str]:
    """The article's stages in which something ran."""
    return list(dict.fromkeys(frame["article_stage"].dropna()))


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a preset and stage: which of our stages it is, its time a batch, and the most batches in flight."""
    rows = []
    for name, events in frame.groupby("preset", sort=False):
        batches = events.loc[events["stage"] == "UPDATE", "batch"].nunique()
        for number, (article, ours) in enumerate(STAGES[name].items(), 1):
            part = events[events["article_stage"] == article]
            ran = ", ".join(stage for stage in ours if (part["stage"] == stage).any())
            row = {"preset": name, "number": number, "stage of the article": article, "our stages": ran}
            row["ms a batch"] = (part["end_ms"] - part["start_ms"]).sum() / batches
            rows.append(row | {"batches in flight": in_flight(events)})
    return pd.DataFrame(rows)


def answers(frame: pd.DataFrame) -> list[dict]:
    """RS-A-005: the stages in RecSDK's timeline, counted."""
    shown = frame[frame["preset"] == "recsdk"]
    seen = stages_seen(shown)
    if shown["article_stage"].isna().any():
        raise AssertionError(f"stages without a name in the article: {sorted(set(shown['stage']) - set(seen))}")
    note = f"{', '.join(seen)}; up to {in_flight(shown)} batches in flight"
    return [answer(claims.claim(_SIX).id, len(seen), "measured", note)]
