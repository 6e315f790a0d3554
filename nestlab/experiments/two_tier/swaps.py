"""What a cache costs the link: rows and bytes that a step swaps in and out, by policy and size.

Predicted before the first run: swap-ins are the misses, so that twice the cache does not halve them; swap-outs follow
them one for one as soon as the cache is full, since every row that was trained has changed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding import optimizer
from nestlab.experiments.two_tier import key_streams, replay
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import DIM, LR, OPTIMIZER

COURSE_SHARE = 0.1  # the size whose course over the steps is shown, where the batches in flight fit it


def record_bytes() -> int:
    """Of one row: weights and optimizer state, float32."""
    return 4 * (DIM + optimizer(OPTIMIZER, lr=LR).state_width(DIM))


def measure(settings: Settings) -> pd.DataFrame:
    """KuaiRand's video ids through the planner; a row a size, policy and run of batches.

    Returns:
        columns label, data, kind, batch_size, policy, share, slots, step (the first of a run of steps), steps, rows_in,
        rows_out, bytes_in, bytes_out (means a step over the run) and full (the cache is, from before the run).
    """
    stream = key_streams.videos(settings)
    foresights = replay.foresee(stream)
    about = {"label": stream.label, "data": stream.data, "kind": stream.kind, "batch_size": stream.batch_size}
    rows = []
    for share in replay.SHARES:
        slots = replay.slots_for(stream, share)
        if slots < stream.room:
            continue
        for policy in replay.POLICIES:
            done = replay.replay(stream, slots, policy, foresights)
            said = {**about, "policy": policy, "share": share, "slots": slots}
            rows += [said | part for part in _runs(done, slots)]
    return pd.DataFrame(rows)


def _runs(done: replay.Replay, slots: int) -> list[dict]:
    """The steps in up to 40 runs of equal length, so that a course can be read."""
    length = max(1, -(-done.came.size // 40))
    filled = int(np.searchsorted(np.cumsum(done.came), slots))  # the first step before whose end every slot is in use
    size = record_bytes()
    found = []
    for first in range(0, done.came.size - length + 1, length):  # the rest, and with it a half-empty batch, is left out
        came, left = (part[first : first + length].mean() for part in (done.came, done.left))
        found.append({"step": first, "steps": length, "rows_in": came, "rows_out": left})
        found[-1] |= {"bytes_in": size * came, "bytes_out": size * left, "full": first > filled}
    return found


def by_size(frame: pd.DataFrame) -> pd.DataFrame:
    """Means a step once the cache is full, a row a size and policy. A cache that never filled swapped nothing out."""
    full = frame[frame["full"]]
    means = full.groupby(["share", "slots", "policy"], sort=False)[["rows_in", "rows_out", "bytes_in", "bytes_out"]]
    return means.mean().reset_index()


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left: swap volume a step by cache size. Right: its course over the steps, at one size."""
    with plotting.style():
        figure = plotting.new_figure(10.0, 4.0)
        sizes, course = figure.subplots(1, 2, sharey=True)
        _by_size(sizes, by_size(frame))
        _course(course, frame)
        figure.legend(*sizes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _by_size(axes: Axes, means: pd.DataFrame) -> None:
    for number, (policy, lines) in enumerate(means.groupby("policy", sort=False)):
        look = {"markersize": 4, "linewidth": 1.2, **plotting.series_style(number)}
        axes.plot(lines["share"] * 100, (lines["bytes_in"] + lines["bytes_out"]) / 1e3, label=policy, **look)
    axes.set_xscale("log")
    ticks = [100 * share for share in means["share"].unique()]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="cache size in % of the distinct ids", ylabel="kB a step, in and out")
    axes.set_title("once the cache is full")


def _course(axes: Axes, frame: pd.DataFrame) -> None:
    share = frame["share"].iloc[(frame["share"] - COURSE_SHARE).abs().argmin()]
    chosen = frame[frame["share"] == share]
    for number, (_, lines) in enumerate(chosen.groupby("policy", sort=False)):
        look = {**plotting.series_style(number), "marker": "", "linewidth": 1.2}
        axes.plot(lines["step"], (lines["bytes_in"] + lines["bytes_out"]) / 1e3, **look)
    axes.set(xlabel="step", ylim=(0, None))
    axes.set_title(f"from empty, cache of {100 * share:g} %: {chosen['slots'].iloc[0]:,} slots")


digest = by_size


def answers(frame: pd.DataFrame) -> list[dict]:
    """None: no source gives a volume."""
    return []
