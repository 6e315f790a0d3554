"""How often a row is in the cache already: every policy against the size of the cache, and against the offline optimum.

Predicted before the first run, for KuaiRand-Pure's video ids at 10 %: clock below lru by a few points, lfu above both,
the oracle within a point of the optimum. Where ids come back late and seldom (user ids, most of Criteo's) no policy
gets far before the cache holds most rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding.device.belady import most_hits
from nestlab.embedding.device.swap import CacheTooSmall
from nestlab.experiments import claims
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier import key_streams, replay
from nestlab.experiments.two_tier.key_streams import KeyStream
from nestlab.experiments.two_tier.settings import Settings

BELADY = "belady"
# Keys of a stream, a second that a part may take, up to which the optimum is computed: that is plain Python.
_KEYS_A_SECOND = 20_000
_LRU_CLAIM = "NP-A-008"


def measure(settings: Settings) -> pd.DataFrame:
    """A row a stream, size and policy.

    Returns:
        columns label, data, kind, keys, batch_size, distinct, policy, share, slots, needed (slots: the union of a batch
        and the one before), key_uses, first_uses, hits, hit_rate and best_rate (0 … 1; best_rate is that of a cache
        that holds everything). hits and hit_rate are NaN where the cache is too small.
    """
    limit = int(_KEYS_A_SECOND * settings.seconds)
    streams = key_streams.logs(settings)
    return pd.DataFrame([row for stream in streams for row in of_stream(stream, replay.SHARES, limit)])


def of_stream(stream: KeyStream, shares: tuple[float, ...], limit: int) -> list[dict]:
    """The rows of one stream, every policy; and the optimum where there are no more than `limit` keys."""
    foresights = replay.foresee(stream)
    policies = (*replay.POLICIES, BELADY) if stream.keys <= limit else replay.POLICIES
    rows = []
    for share in shares:
        for policy in policies:
            slots = replay.slots_for(stream, share)
            rows.append({**_about(stream), "policy": policy, "share": share, "slots": slots})
            hits = _hits(stream, slots, policy, foresights)
            rows[-1] |= {"hits": hits, "hit_rate": hits / max(1, stream.keys)}
    return rows


def _about(stream: KeyStream) -> dict:
    return {
        "label": stream.label,
        "data": stream.data,
        "kind": stream.kind,
        "keys": stream.name,
        "batch_size": stream.batch_size,
        "distinct": stream.distinct,
        "needed": stream.room,
        "key_uses": stream.keys,
        "first_uses": stream.distinct,
        "best_rate": 1 - stream.distinct / max(1, stream.keys),
    }


def _hits(stream: KeyStream, slots: int, policy: str, foresights: list) -> float:
    if slots < stream.room:
        return np.nan
    try:
        if policy == BELADY:
            return most_hits(stream.batches, slots)
        return replay.replay(stream, slots, policy, foresights).hits
    except CacheTooSmall as error:  # what `room` says and what the planner refuses is one thing
        raise AssertionError(f"{stream.label}: {slots} slots hold {stream.room} rows, and were refused") from error


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a stream: real logs above, twins below."""
    kinds = [kind for kind in ("real", "synthetic") if (frame["kind"] == kind).any()]
    panels = {kind: list(dict.fromkeys(frame.loc[frame["kind"] == kind, "label"])) for kind in kinds}
    columns = max(len(labels) for labels in panels.values())
    published = float(claims.claim(_LRU_CLAIM).value)
    with plotting.style():
        figure = plotting.new_figure(10.0, 0.9 + 2.5 * len(kinds))
        grid = figure.subplots(len(kinds), columns, sharex=True, sharey=True, squeeze=False)
        for row, kind in zip(grid, kinds, strict=True):
            for axes, label in zip(row, panels[kind], strict=False):
                _panel(axes, frame[frame["label"] == label], published)
            for axes in row[len(panels[kind]) :]:
                axes.set_visible(False)
            row[0].set_ylabel("hit rate in %")
        for axes in grid[-1]:
            axes.set_xlabel("cache size in % of the distinct ids")
        _legend(figure, grid[0][0])
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, published: float) -> None:
    curves(axes, frame, "share", 100)
    line = {"linewidth": 0.8, "zorder": 1}
    axes.axhline(published, color=plotting.PALETTE["grey"], label=f"published for lru: {published:g} %", **line)
    best = frame["best_rate"].iloc[0] * 100
    axes.axhline(best, color=plotting.INK, linestyle=(0, (1, 3)), label="a cache that holds every row", **line)
    _show_too_small(axes, frame)
    axes.set_xscale("log")
    ticks = [share * 100 for share in replay.SHARES]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 102)
    axes.set_title(f"{frame['label'].iloc[0]}\n{frame['distinct'].iloc[0]:,} ids, batch {frame['batch_size'].iloc[0]}")


def curves(axes: Axes, frame: pd.DataFrame, across: str, scale: float = 1.0) -> None:
    """Hit rate in % by policy over a column times `scale`; the optimum as a broad band behind."""
    for number, (policy, lines) in enumerate(frame.groupby("policy", sort=False)):
        look = {"markersize": 4, "linewidth": 1.2, "label": policy, **plotting.series_style(number)}
        if policy == BELADY:
            look = {
                "color": plotting.pale(plotting.INK, 0.7),
                "linewidth": 5,
                "zorder": 1,
                "label": "Belady, the limit",
            }
        axes.plot(lines[across] * scale, lines["hit_rate"] * 100, **look)


def _show_too_small(axes: Axes, frame: pd.DataFrame) -> None:
    """Grey where the batches in flight do not fit: there the planner refuses."""
    needed = 100 * frame["needed"].iloc[0] / frame["distinct"].iloc[0]
    axes.axvspan(100 * min(replay.SHARES) / 1.25, needed, color=plotting.IDLE, zorder=0, linewidth=0)
    axes.set_xlim(100 * min(replay.SHARES) / 1.25, 100)
    if needed > 2.5 * 100 * min(replay.SHARES):
        axes.text(
            needed / 1.08, 4, "refused: too small", rotation=90, ha="right", va="bottom", fontsize=7, color=plotting.INK
        )


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)


def size_for(frame: pd.DataFrame, policy: str, rate: float) -> float:
    """The share of the distinct rows at which a policy reaches a hit rate, between measured sizes by a straight line.

    NaN where no measured size reaches it; the smallest measured size where that does already. `frame`: of one stream.
    """
    lines = frame[(frame["policy"] == policy) & frame["hit_rate"].notna()].sort_values("share")
    shares, rates = lines["share"].to_numpy(), lines["hit_rate"].to_numpy()
    reached = np.flatnonzero(rates >= rate)
    if not reached.size:
        return float("nan")
    at = reached[0]
    if at == 0:
        return float(shares[0])
    part = (rate - rates[at - 1]) / (rates[at] - rates[at - 1])
    return float(shares[at - 1] + part * (shares[at] - shares[at - 1]))


def sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a stream: the cache size at which lru reaches the published rate (% of the distinct ids, NaN if never)."""
    published = float(claims.claim(_LRU_CLAIM).value)
    rows = []
    for label, lines in frame.groupby("label", sort=False):
        lru = lines[lines["policy"] == "lru"]
        rows.append(
            {
                "stream": label,
                "published_hit_rate_%": published,
                "reached_at_%_of_ids": 100 * size_for(lines, "lru", published / 100),
                "best_of_lru_%": 100 * lru["hit_rate"].max(),
                "if_everything_fitted_%": 100 * lru["best_rate"].iloc[0],
                "smallest_cache_%_of_ids": 100 * lru["needed"].iloc[0] / lru["distinct"].iloc[0],
            }
        )
    return pd.DataFrame(rows)


digest = sizes


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """Of the first stream: hit rates at the smallest size that all policies can be compared at."""
    first = frame[(frame["label"] == frame["label"].iloc[0]) & frame["hit_rate"].notna()]
    if first.empty:
        return {}
    smallest = first[first["share"] == first["share"].min()]
    figures = {f"hit_rate_{row['policy']}": round(row["hit_rate"], 4) for _, row in smallest.iterrows()}
    return {"hit_rates_at_share": float(smallest["share"].iloc[0]), **figures}


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-A-008, on KuaiRand's video ids: the published rate where lru reaches it, else the best it comes to."""
    first = frame[frame["keys"] == "video_id"]
    real = first[first["kind"] == "real"]
    if real.empty:
        return []  # the claim is on real rows
    row = sizes(real[real["label"] == real["label"].iloc[0]]).iloc[0]
    reached = row["reached_at_%_of_ids"]
    best = f"{row['best_of_lru_%']:.1f} % at {100 * max(replay.SHARES):g} % of the ids"
    note = (
        f"{row['stream']}: not reached; {best}, {row['if_everything_fitted_%']:.1f} % if every row fitted"
        if np.isnan(reached)
        else f"{row['stream']}: reached at {reached:.0f} % of the distinct ids; {best}"
    )
    obtained = row["best_of_lru_%"] if np.isnan(reached) else row["published_hit_rate_%"]
    return [answer(_LRU_CLAIM, round(float(obtained), 2), "measured", note)]
