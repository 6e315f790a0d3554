"""Two-level retrieval: look-ups a second over threads and buckets (JD Retail), against one index of the same keys.

What is measured, and what was predicted, stands in nestlab/benchmarks/buckets.py.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.benchmarks import buckets
from nestlab.benchmarks.buckets import Scale
from nestlab.experiments import claims
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.settings import Settings

LOOK_UP = "look-up"
_BUCKETS, _THREADS = "NP-A-007", "JD-A-012"
_SMALL = Scale(distinct=200_000, lookups=200_000, grown=200_000, repeats=5)
_LAPTOP = Scale(distinct=2_000_000, lookups=500_000, grown=2_000_000, repeats=9)


def measure(settings: Settings) -> pd.DataFrame:
    """The rows of `nestlab bench buckets`, smaller where there is less time.

    Returns:
        columns work (look-up, or insert, growing from empty), buckets (0: one index without buckets), threads, mkeys_s
        (median), p10, p90, per_cpu_s, repeats, longest_call_ms (of a growing table; median, p10, p90), distinct, call
        (keys an insertion), how.
    """
    scale = _SMALL if settings.seconds < 10 else _LAPTOP if settings.seconds < 100 else Scale()
    scale = replace(scale, buckets=tuple(sorted({*scale.buckets, int(claims.claim(_BUCKETS).value)})))
    done = buckets.run(scale)
    return pd.DataFrame(done["rows"]).assign(distinct=scale.distinct, call=scale.call, how=done["how"])


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left: look-ups a second by buckets. Right: the longest call while a table grows from empty."""
    with plotting.style():
        figure = plotting.new_figure(10.0, 3.9)
        rates, pauses = figure.subplots(1, 2)
        _lines(rates, frame[frame["work"] == LOOK_UP], ("mkeys_s", "p10", "p90"))
        rates.set(ylabel="million look-ups a second", ylim=(0, None))
        _lines(pauses, frame[frame["longest_call_ms"].notna()], ("longest_call_ms", "longest_p10", "longest_p90"))
        pauses.set(ylabel=f"longest insertion of {frame['call'].iloc[0]:,} keys in ms", ylim=(0, None))
        rates.axvline(claims.claim(_BUCKETS).value, color=plotting.PALETTE["grey"], linewidth=0.8, zorder=0)
        published = f"published: {claims.published(claims.claim(_BUCKETS))}"
        rates.annotate(
            published, (claims.claim(_BUCKETS).value, 0), (-3, 4), textcoords="offset points", ha="right", fontsize=8
        )
        figure.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _lines(axes: Axes, frame: pd.DataFrame, columns: tuple[str, str, str]) -> None:
    """Median with the 10th to 90th percentile over the repeats; one index without buckets as a level."""
    middle, low, high = columns
    whole = frame[frame["buckets"] == 0].iloc[0]
    axes.axhspan(whole[low], whole[high], color=plotting.IDLE, zorder=0)
    axes.axhline(whole[middle], color=plotting.INK, linewidth=1.0, linestyle="--", label="one index, 1 thread")
    for number, (threads, lines) in enumerate(frame[frame["buckets"] > 0].groupby("threads")):
        errors = (lines[middle] - lines[low], lines[high] - lines[middle])
        look = {"markersize": 4, "linewidth": 1.2, "capsize": 2, **plotting.series_style(number)}
        name = f"buckets, {threads} thread{'s' if threads > 1 else ''}"
        axes.errorbar(lines["buckets"], lines[middle], errors, label=name, **look)
    ticks = sorted(frame.loc[frame["buckets"] > 0, "buckets"].unique())
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("buckets")


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a number of buckets and threads: look-ups a second with their spread, and the longest insertion."""
    keys = ["buckets", "threads"]
    rates = frame[frame["work"] == LOOK_UP].set_index(keys)[["mkeys_s", "p10", "p90"]]
    pauses = frame[frame["work"] != LOOK_UP].set_index(keys)[["longest_call_ms", "longest_p10", "longest_p90"]]
    return rates.join(pauses).reset_index()


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-A-007: the number of buckets with the best rate on two threads. JD-A-012: two threads over one, there."""
    rates = frame[(frame["work"] == LOOK_UP) & (frame["buckets"] > 0)].pivot(
        index="buckets", columns="threads", values=["mkeys_s", "p10", "p90"]
    )
    if 2 not in rates["mkeys_s"].columns:
        return []
    best = int(rates["mkeys_s"][2].idxmax())
    article = int(claims.claim(_BUCKETS).value)
    listed = ", ".join(f"{buckets}: {rate:.1f}" for buckets, rate in rates["mkeys_s"][2].items())
    spread = (rates["p90"][2] - rates["p10"][2]).max()
    note = f"million look-ups a second on 2 threads by buckets: {listed}; 80 % of the repeats within {spread:.1f}"
    speed_up = rates["mkeys_s"].loc[article, 2] / rates["mkeys_s"].loc[article, 1]
    slower = f"look-up rate of 2 threads over 1, {article} buckets; other work on the cores counts against it"
    return [
        answer(_BUCKETS, best, "measured", note),
        answer(_THREADS, round(float(speed_up), 2), "measured", slower),
    ]
