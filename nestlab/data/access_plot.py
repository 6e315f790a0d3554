"""Access statistics to look at: curves of misses, and tables with one line a feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nestlab.data.access import ALL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def miss_ratio_figure(frames: dict[str, pd.DataFrame], meta: dict[str, Any], features: int = 6) -> Figure:
    """Misses over the size of a cache, of the features with the largest tables; below each curve its cold misses.

    Args:
        frames: what `access_statistics` returned.
        meta: `dataset`, its title, and `how`: measured.
    """
    from nestlab import plotting

    largest = frames["access"].nlargest(features, "rows").feature
    with plotting.style():
        figure = plotting.new_figure(8.0, 4.2)
        axes = figure.subplots()
        for number, feature in enumerate(largest):
            lines = frames["miss_ratio"].query("feature == @feature")
            look = plotting.series_style(number)
            axes.plot(lines["size"], lines.miss_ratio, label=feature, markersize=4, **look)
            axes.axhline(lines.cold.iloc[0], color=look["color"], linewidth=0.6, alpha=0.5)
        axes.set(xscale="log", ylim=(0, 1), xlabel="cache, as a share of the table's rows", ylabel="misses under LRU")
        title = "Exact miss ratios of LRU; thin lines: first look-ups, which always miss"
        axes.set_title(plotting.titled(title, meta, width=85))
        axes.legend()
    return figure


def by_feature(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same numbers with a line a feature, sizes and batches across: what `nestlab data describe` prints."""
    features = [*frames["access"].feature, ALL]
    tables = {"access": frames["access"]}
    for title, value in (("unique_share", "unique / look-ups"), ("overlap", "keys that the batch before has too")):
        wide = frames["reuse"].pivot(index="feature", columns="batch", values=title).reindex(features)
        tables[f"{value}, by batch size"] = wide.dropna(axis=1, how="all").reset_index()
    wide = frames["miss_ratio"].pivot(index="feature", columns="size", values="miss_ratio").reindex(features[:-1])
    tables["misses under LRU, by share of the table that is cached"] = wide.reset_index()
    for table in tables.values():
        table.columns.name = None
    return tables
