"""By what unique rows are sorted before they are cut into slices: by row number, or by how often they are asked for.

The article says that indices are rearranged by access frequency, to balance devices; the source's code sorts by number.
Both are counted here on the same batches, a slice to a device. Predicted before the first run: sorted by frequency
nearly every slice has rows of nearly every prefix, so that prefixes are multiplied again in each slice, and what is
held for them hardly falls; dealt out in turn the rows balance well, but so do slices of sorted numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_plan import plan
from nestlab.embedding.tensor_train.ecorec_torch import widths
from nestlab.embedding.tensor_train.shape import TTShape, suggest
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, SKEW, columns, drawn, scattered
from nestlab.experiments.tables import Said, answer, chosen, share

BY_NUMBER, BY_FREQUENCY, DEALT = "by row number", "by frequency", "by frequency, dealt in turn"
LABELLED = (BY_FREQUENCY, DEALT)  # the article's reading, as an alternative
_DIGEST = {
    "data": "data",
    "sorted_by": "rows sorted",
    "slices": "slices",
    "indices": "ids",
    "products": "prefix products",
    "more": "over those by number, ×",
    "operations_ratio": "operations, forward and backward, ×",
    "load_ratio": "fullest slice over the mean, operations",
    "indices_ratio": "fullest over the mean, look-ups",
    "peak_bytes": "held by the largest slice, MB",
    "unique": "n_u / ids, %",
    "prefixes": "n_p / ids, %",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a batch, an order and a number of slices.

    Columns: data, kind, indices, table_rows, sorted_by (`by row number`: the code; the others: the article's reading),
    slices, unique, prefixes (n_u and n_p over the ids), products (prefixes multiplied, over all slices), more (over
    those by row number), operations, operations_ratio (over those by row number), load_ratio (operations of the slice
    that has most over the mean), indices_ratio (look-ups, the same), peak_bytes (products of prefixes and rows of the
    largest slice), how: `computed`, by counting.
    """
    rows = []
    for about, numbers, shape in _batches(settings):
        for slices in (n for n in settings.slices if n > 1):
            found = {name: counted(numbers, parts, shape) for name, parts in cuts(numbers, shape, slices).items()}
            ours = found[BY_NUMBER]
            for name, row in found.items():
                over = {"more": row["products"] / ours["products"]}
                over |= {"operations_ratio": row["operations"] / ours["operations"]}
                rows.append({**about, "sorted_by": name, "slices": slices, **row, **over, "how": "computed"})
    return pd.DataFrame(rows)


def _batches(settings: Settings) -> Iterator[tuple[dict[str, Any], np.ndarray, TTShape]]:
    """One batch of KuaiRand's user ids (the twin's, where there are no real ones), hashed; one of a power law."""
    users = next(column for column in columns(settings) if column.name == "user_id")
    ids = users.ids("train")[: settings.memory_indices]
    table_rows = np.unique(ids).size
    known = {"data": users.label, "kind": users.dataset.info.kind}
    yield _batch(settings, known, scattered(ids, table_rows), table_rows)
    law = {"data": f"power law of skew {SKEW} (SYNTHETIC), {HASHED}", "kind": "synthetic"}
    rows = drawn(HASHED, settings.memory_indices, settings.table_rows, settings.seed)
    yield _batch(settings, law, rows, settings.table_rows)


def _batch(settings: Settings, about: dict[str, Any], rows: np.ndarray, table_rows: int):
    shape = suggest(table_rows, settings.dim, rank=settings.rank)
    return {**about, "indices": rows.size, "table_rows": table_rows}, rows, shape


def cuts(rows: np.ndarray, shape: TTShape, slices: int) -> dict[str, list[np.ndarray]]:
    """By order: the unique rows of each slice, of row numbers rows [n] int64.

    By number as the library cuts them; by frequency in parts of equal numbers of rows, or each part every n-th of them.
    """
    unique, counts = np.unique(rows, return_counts=True)
    frequent = unique[np.argsort(-counts, kind="stable")]
    bags = Bags.of(torch.from_numpy(rows), torch.ones(rows.size, dtype=torch.int64))
    spans = plan(shape, bags).cut(slices, widths(shape))
    return {
        BY_NUMBER: [unique[slice(*span.levels[-1])] for span in spans],
        BY_FREQUENCY: np.array_split(frequent, slices),
        DEALT: [frequent[at::slices] for at in range(slices)],
    }


def counted(rows: np.ndarray, parts: list[np.ndarray], shape: TTShape) -> dict[str, Any]:
    """What `run` has of row numbers [n] int64 whose unique rows are worked off in these parts, of three cores."""
    unique, counts = np.unique(rows, return_counts=True)
    last = shape.row_factors[-1]
    prefixes = np.array([np.unique(part // last).size for part in parts])
    sizes = np.array([part.size for part in parts])
    looked_up = np.array([counts[np.searchsorted(unique, part)].sum() for part in parts])
    first, second = shape.products
    operations = prefixes * 4 * first + sizes * 3 * second  # E1 and 3·E1, E2 and 2·E2: forward and backward
    held = 4 * (np.array([prefixes, sizes]).T * widths(shape)).sum(axis=1)
    return {
        "unique": unique.size / rows.size,
        "prefixes": np.unique(unique // last).size / rows.size,
        "products": int(prefixes.sum()),
        "operations": int(operations.sum()),
        "load_ratio": float(operations.max() / operations.mean()),
        "indices_ratio": float(looked_up.max() / looked_up.mean()),
        "peak_bytes": int(held.max()),
    }


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Prefix products, bytes of the largest slice, and balance over the slices; a row a batch."""
    batches = list(dict.fromkeys(frame["data"]))
    panels = {
        "more": "prefix products,\nover those by number",
        "peak_bytes": "held by the largest\nslice, MB",
        "load_ratio": "operations, fullest\nslice over the mean",
        "indices_ratio": "look-ups, fullest\nslice over the mean",
    }
    with plotting.style():
        figure = plotting.new_figure(10.5, 2.5 * len(batches) + 0.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        grid = figure.subplots(len(batches), len(panels), squeeze=False)
        for row, data in zip(grid, batches, strict=True):
            for axes, (column, label) in zip(row, panels.items(), strict=True):
                _draw(axes, frame[frame["data"] == data], column)
                axes.set_ylabel(label)
            row[0].set_title(f"{data}; {frame.loc[frame['data'] == data, 'indices'].iloc[0]:,} ids", fontsize=8)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return figure


def _draw(axes, rows: pd.DataFrame, column: str) -> None:
    factor = 1e-6 if column == "peak_bytes" else 1
    for number, name in enumerate((BY_NUMBER, *LABELLED)):
        line = rows[rows["sorted_by"] == name]
        label = f"{name} ({'the article' if name in LABELLED else 'the code'})"
        axes.plot(line["slices"], factor * line[column], label=label, **plotting.series_style(number))
    slices = sorted(set(rows["slices"]))
    axes.set(xscale="log", xlabel="slices", ylim=(0, 1.08 * factor * rows[column].max()))
    axes.set_xticks(slices, [str(n) for n in slices])
    axes.minorticks_off()


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    slices = sorted(set(frame["slices"]))
    return chosen(frame[frame["slices"].isin({slices[0], _slices(frame), slices[-1]})], _DIGEST)


def _slices(frame: pd.DataFrame) -> int:
    """As many as in the source's experiments, or the most there are."""
    wanted = int(register.claim("ER-P-025").value[0])
    return wanted if wanted in set(frame["slices"]) else int(frame["slices"].max())


def says(frame: pd.DataFrame) -> Said:
    at = frame[frame["slices"] == _slices(frame)]
    lines = [f"In {_slices(frame)} slices (load: operations of the fullest slice over the mean):", ""]
    return Said("\n".join([*lines, *(_told(data, rows) for data, rows in at.groupby("data", sort=False))]))


def _told(data: str, rows: pd.DataFrame) -> str:
    by = rows.set_index("sorted_by")
    told = "; ".join(
        f"*{name}* {row['more']:.2f} times as many prefix products, {row['operations_ratio']:.2f} times as many "
        f"operations, load {row['load_ratio']:.2f}"
        for name, row in by.loc[list(LABELLED)].iterrows()
    )
    held = by["peak_bytes"] / 1e6
    return (
        f"* {data}: {told}; by row number the load is {by.loc[BY_NUMBER, 'load_ratio']:.2f}. The largest slice holds "
        f"{held[BY_NUMBER]:.3g} MB by number and {held[BY_FREQUENCY]:.3g} MB by frequency."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    """ER-A-003: operations of the fullest slice, by frequency and dealt in turn, over those by number. Both over the
    mean by number: balance that is bought with more work for all is none."""
    rows = frame[frame["slices"] == _slices(frame)]
    by = rows[rows["data"] == rows["data"].iloc[0]].set_index("sorted_by")
    ours, theirs = by.loc[BY_NUMBER], by.loc[DEALT]
    obtained = float(theirs["load_ratio"] * theirs["operations_ratio"] / ours["load_ratio"])
    note = (
        f"{ours['data']}, {_slices(frame)} slices, one a device: over its own mean the fullest has "
        f"{theirs['load_ratio']:.3f} dealt in turn by frequency and {ours['load_ratio']:.3f} by number, but there are "
        f"{theirs['more']:.2f} times the prefix products, {share(theirs['operations_ratio'] - 1)} more operations"
    )
    return [answer("ER-A-003", obtained, "computed", note)]
