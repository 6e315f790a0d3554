"""Clustering of a batch's samples: which micro-batch needs which rows, before and after."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.batching import cost, rule, sample_keys
from nestlab.batching.samples import bounds
from nestlab.experiments.mechanisms import toy

PARTS = 2


def orders(rules: tuple[str, ...], batch: int = 0) -> dict[str, np.ndarray]:
    """Rule → [B] int64, the sample at each place."""
    samples = sample_keys(toy.as_batch(batch))
    return {name: rule(name).order(samples, PARTS) for name in rules}


def costs(rules: tuple[str, ...], batch: int = 0) -> pd.DataFrame:
    """A row a rule: its order of samples, the rows that each micro-batch asks for, their sum, and the bound."""
    samples = sample_keys(toy.as_batch(batch))
    rows = []
    for name, order in orders(rules, batch).items():
        rows.append(
            {
                "rule": name,
                "order of samples": ", ".join(map(str, order)),
                **{f"rows of part {i}": len(ids) for i, ids in enumerate(_ids_by_part(order, batch))},
                "rows sent": cost(samples, PARTS, order),
                "bound": samples.unique,
            }
        )
    return pd.DataFrame(rows)


def picture(rules: tuple[str, ...], title: str, batch: int = 0) -> Figure:
    """A panel a rule: samples from top to bottom in their new order, a mark where a sample has an id."""
    with plotting.style():
        figure = plotting.new_figure(3.6 * len(rules), 2.9)
        panels = figure.subplots(1, len(rules), squeeze=False)[0]
        for axes, (name, order) in zip(panels, orders(rules, batch).items(), strict=True):
            _draw(axes, name, order, batch)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _draw(axes: Axes, name: str, order: np.ndarray, batch: int) -> None:
    cuts = bounds(len(order), PARTS)
    for part in range(PARTS):
        for place in range(cuts[part], cuts[part + 1]):
            ids = toy.BATCHES[batch][order[place]]
            style = plotting.series_style(part)
            axes.plot(ids, [place] * len(ids), marker=style["marker"], color=style["color"], linestyle="", markersize=9)
        if part:
            axes.axhline(cuts[part] - 0.5, color=plotting.INK, linewidth=1.0)
    sent = [len(ids) for ids in _ids_by_part(order, batch)]
    axes.set_title(f"{name}: {' + '.join(map(str, sent))} = {sum(sent)} rows")
    axes.set_xticks(toy.keys_of(batch))
    axes.set_xlim(min(toy.keys_of(batch)) - 0.5, max(toy.keys_of(batch)) + 0.5)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_yticks(range(len(order)), [f"sample {s}" for s in order])
    axes.set_xlabel("id")


def _ids_by_part(order: np.ndarray, batch: int) -> list[set[int]]:
    cuts = bounds(len(order), PARTS)
    samples = [toy.BATCHES[batch][s] for s in order]
    return [{i for sample in samples[cuts[p] : cuts[p + 1]] for i in sample} for p in range(PARTS)]
