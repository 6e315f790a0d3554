"""Hit rate against skew: ids drawn by Zipf's law, a cache of one size, every policy.

Predicted before the first run: below a skew of 0.8 the policies lie together and near the cache's share of the ids;
beyond it lfu gains most, since the frequent ids stay the same for ever. Real logs, whose ids age, are less kind to it.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.two_tier import hit_rates, key_streams
from nestlab.experiments.two_tier.settings import Settings

SKEWS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
SHARE = 0.1  # of the distinct ids, in the cache
_DISTINCT = 10_000
_MOST_SAMPLES = 200_000


def measure(settings: Settings) -> pd.DataFrame:
    """As `hit_rates.measure`, for one size, with a column skew in front."""
    samples = min(settings.rows or _MOST_SAMPLES, _MOST_SAMPLES)
    distinct = min(_DISTINCT, samples // 4)
    batch_size = min(settings.batch_size, int(SHARE * distinct) // 4)  # so that two batches fit, whatever the skew
    rows = []
    for skew in SKEWS:
        stream = key_streams.zipf(skew, distinct, samples, batch_size, settings.seed)
        rows += [{"skew": skew, **row} for row in hit_rates.of_stream(stream, (SHARE,), samples)]
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Hit rate of every policy over the skew."""
    with plotting.style():
        figure = plotting.new_figure(7.0, 3.6)
        axes = figure.add_subplot()
        hit_rates.curves(axes, frame, "skew")
        axes.set_xticks(SKEWS)
        axes.set_xlabel("skew: the k-th most frequent id has weight k to the power of −skew")
        axes.set_ylabel("hit rate in %")
        axes.set_ylim(0, 102)
        axes.legend(loc="upper left")
        axes.set_title(title)
    return figure


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """Hit rates in %, a row a skew."""
    return (
        100 * frame.pivot(index="skew", columns="policy", values="hit_rate")[list(dict.fromkeys(frame["policy"]))]
    ).round(1)


def answers(frame: pd.DataFrame) -> list[dict]:
    """None: no source gives a figure by skew."""
    return []
