"""Step time with and without prefetch: a cache over an emulated link between host and device.

The compute is this machine's, which is far slower than an accelerator's; the link is slowed in proportion, so that a
step's transfers cost about as much as its computation. So the ratios mean something and the milliseconds do not.

Predicted before the first run: with one batch in flight a transfer stands in the step in full; with two most of it is
hidden, and the exposed time of retrieval falls to a small part; more than two gain little, since retrieval is one batch
ahead either way. The larger the cache the less there is to hide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.two_tier.one_pass import Stream, open_stream
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import Setup, repeated
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import Trace, exposed_time, summary
from nestlab.tracing.memory import totals

LINK = "200us,0.25gbit"
CACHE_SHARE = 0.3
DEPTHS = (1, 2, 5)
RETRIEVAL = ("PREPARE", "POST", "PLAN", "RETRIEVE", "COMMIT", "WRITEBACK")
_BLOCK = 6  # steps of one set-up before it is the next one's turn
_SKIPPED = 2  # of a block: they find what was prefetched during the others' turns


@dataclass(eq=False)
class _Run:
    """One set-up's training, which goes on from turn to turn, and the times of its steps in ms."""

    setup: Setup
    pipeline: Pipeline
    steps: Iterator
    times: list[list[float]]


def measure(settings: Settings) -> pd.DataFrame:
    """A row a set-up: tier, depth and link. Blocks of steps in turns; exposed times from a training of its own each.

    Returns:
        columns tier, depth, link, how; step_ms (median over all blocks), step_ms_low, step_ms_high (10th and 90th
        percentile of the blocks' medians), blocks, steps; of a training that is traced: retrieval_ms (a step: PREPARE
        or its parts, COMMIT, WRITEBACK), exposed_retrieval_ms (a step: compute waits for them), exposed_share (of all
        its time), hit_rate, bytes_in, bytes_out (a step), rows, peak_device_bytes (accounted), device_bytes_a_row,
        host_bytes_a_row (of the tables).
    """
    stream = open_stream(settings)
    runs = [_start(setup, stream) for setup in setups(settings)]
    for turn in range(max(2, min(16, int(0.8 * settings.seconds)))):  # the first is not counted
        first = turn % len(runs)  # what disturbs every so often does not hit the same one
        for run in runs[first:] + runs[:first]:
            _block(run)
    for run in runs:
        run.steps.close()
        run.pipeline.drain()
    return pd.DataFrame([_row(run, stream, settings) for run in runs])


def setups(settings: Settings) -> list[Setup]:
    """No tier at all; then each tier at every depth, over the link."""
    depths = DEPTHS if settings.seconds >= 10 else DEPTHS[:2]
    cache = Techniques(device_tier="slot_cache", cache_slots=CACHE_SHARE)
    common = {"seed": settings.seed, "device": settings.device}
    found = [Setup(Techniques(), lanes=False, **common)]
    for tier in (Techniques(device_tier="dual_buffer"), cache):
        for depth in depths:
            found.append(Setup(replace(tier, pipeline_depth=depth), link=LINK, **common))
    return found


def _start(setup: Setup, stream: Stream) -> _Run:
    pipeline = setup.build(stream)
    return _Run(setup, pipeline, pipeline.run(repeated(stream)), [])


def _block(run: _Run) -> None:
    for _ in range(_SKIPPED):
        next(run.steps)
    times = []
    for _ in range(_BLOCK):
        started = time.perf_counter()
        next(run.steps)
        times.append(1e3 * (time.perf_counter() - started))
    run.times.append(times)


def _row(run: _Run, stream: Stream, settings: Settings) -> dict:
    setup, times = run.setup, np.array(run.times[1:])  # the first block compiles and fills the cache
    middles = np.median(times, axis=1)
    return {
        "tier": setup.tier,
        "depth": setup.flags.pipeline_depth,
        "link": setup.link,
        "how": setup.how,
        "step_ms": float(np.median(times)),
        "step_ms_low": float(np.percentile(middles, 10)),
        "step_ms_high": float(np.percentile(middles, 90)),
        "blocks": len(times),
        "steps": times.size,
        **_traced(setup, stream, settings),
    }


def _traced(setup: Setup, stream: Stream, settings: Settings) -> dict:
    """Where the compute lane waited, bytes a step, and the peak of what is held."""
    steps, skip = (8, 6) if settings.seconds < 10 else (16, 40)
    pipeline, trace = setup.trace(stream, steps, skip)
    figures = summary(trace)
    exposed = exposed_time(trace).set_index("stage")["exposed_ms"].reindex(RETRIEVAL).fillna(0).sum()
    spent = sum(event.duration_ns for event in trace.events if event.stage in RETRIEVAL) / 1e6
    counters = pipeline.model.embedding.counters
    return {
        "retrieval_ms": spent / figures["steps"],
        "exposed_retrieval_ms": float(exposed) / figures["steps"],
        "exposed_share": float(exposed) / figures["span_ms"],
        "hit_rate": counters.hits / max(1, counters.hits + counters.misses),
        "bytes_in": counters.bytes_in / counters.batches,
        "bytes_out": counters.bytes_out / counters.batches,
        **bytes_a_row(pipeline, trace),
    }


def bytes_a_row(pipeline: Pipeline, trace: Trace) -> dict:
    """rows in the tables; peak_device_bytes (all kinds); tables' bytes a row in the device tier and in host memory."""
    memory = pipeline.memory(trace)
    rows = sum(len(host.index) for host in pipeline.model.embedding.hosts)
    kinds = memory.set_index("kind")["peak_bytes"]
    return {
        "rows": rows,
        "peak_device_bytes": totals(memory)["peak_device_bytes"],
        "device_bytes_a_row": int(kinds["buffers"]) / rows,
        "host_bytes_a_row": int(kinds["tables"]) / rows,
    }


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bars: the step by tier and depth, and in it the time that compute waited for retrieval."""
    reference, linked = frame[frame["link"] == ""].iloc[0], frame[frame["link"] != ""]
    with plotting.style():
        figure = plotting.new_figure(10.0, 4.2)
        axes = figure.add_subplot()
        axes.axhspan(reference["step_ms_low"], reference["step_ms_high"], color=plotting.IDLE, zorder=0)
        look = {"color": plotting.INK, "linestyle": "--", "linewidth": 1}
        axes.axhline(reference["step_ms"], label="no tier, no link", **look)
        _bars(axes, linked)
        axes.set(ylabel="ms a step", xlabel="batches in flight")
        axes.set_ylim(0, linked["step_ms_high"].max() * 1.18)
        axes.grid(False, axis="x")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        axes.set_title(f"{title}\nlink between host and device: {linked['link'].iloc[0]}")
    return figure


def _bars(axes: Axes, frame: pd.DataFrame) -> None:
    """A group a tier, a bar a depth: what is left of the step without the wait for retrieval, and the wait on top."""
    places, names, first = [], [], True
    for tier, lines in frame.groupby("tier", sort=False):
        start = places[-1] + 1.6 if places else 0.0
        at = [start + i for i in range(len(lines))]
        waits = lines["exposed_share"] * lines["step_ms"]
        labels = ("the rest of the step", "compute waits for retrieval") if first else (None, None)
        axes.bar(at, lines["step_ms"] - waits, 0.8, label=labels[0], **plotting.bar_style(0))
        axes.bar(at, waits, 0.8, bottom=lines["step_ms"] - waits, label=labels[1], **plotting.bar_style(1))
        spread = (lines["step_ms"] - lines["step_ms_low"], lines["step_ms_high"] - lines["step_ms"])
        axes.errorbar(at, lines["step_ms"], spread, fmt="none", ecolor=plotting.INK, capsize=3)
        for x, high, value in zip(at, lines["step_ms_high"], lines["step_ms"], strict=True):
            axes.annotate(f"{value:.1f}", (x, high), (0, 3), textcoords="offset points", ha="center", fontsize=8)
        middle = len(lines) // 2
        names += [f"{depth}" + (f"\n{tier}" if i == middle else "") for i, depth in enumerate(lines["depth"])]
        places += at
        first = False
    axes.set_xticks(places, names)


_DIGEST = ["tier", "depth", "how", "step_ms", "step_ms_low", "step_ms_high", "retrieval_ms", "exposed_retrieval_ms"]


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """Times of a step, hit rates and bytes on the link."""
    return frame[[*_DIGEST, "hit_rate", "bytes_in", "bytes_out"]]


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """How many times as fast a step is with prefetch over the emulated link, a tier each."""
    figures = {}
    for tier, lines in frame[frame["link"] != ""].groupby("tier", sort=False):
        by_depth = lines.set_index("depth")["step_ms"]
        name = tier.replace(", ", "_")
        figures[f"emulated_link_prefetch_speedup_{name}"] = round(float(by_depth.iloc[0] / by_depth.iloc[-1]), 3)
    return figures


def answers(frame: pd.DataFrame) -> list[dict]:
    """None: the sources give no step time with and without prefetch."""
    return []
