"""How much comes again in a batch: unique ids, and unique prefixes of their row numbers, over the batch size.

Predicted before the first run: the share of unique ids falls with the batch, since popular ids come again; that of
prefixes falls faster, towards the number of all prefixes over the batch; the most frequent ids first saves half of the
prefixes of hashed ids, and EL-Rec's communities a third more on the batches that they were made from, little beyond.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.data.planted import hash64
from nestlab.data.reorder import ReorderOptions, reorder
from nestlab.data.reorder_map import FeatureMap
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes import EcoRec
from nestlab.embedding.tensor_train.shape import TTShape, suggest
from nestlab.embedding.tensor_train.work import Work
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, Column, columns
from nestlab.experiments.tables import Said, answer, chosen, share

ORDERS = {HASHED: "hashed", "frequency": "by frequency", "communities": "EL-Rec's order"}
TRAIN, HELDOUT = "training rows, shuffled", "held-out rows, in the order of time"
_EL_REC = "communities"
_DIGEST = {
    "column": "ids",
    "rows_of": "rows",
    "batch": "batch, ids",
    "order": "order",
    "unique": "unique, %",
    "prefixes": "unique prefixes, %",
    "prefixes_2_of_4": "of 4 cores: 2 digits, %",
    "prefixes_3_of_4": "3 digits, %",
    "table_rows": "table, rows",
    "batches": "batches",
    "peak_bytes": "peak of EcoRec, MB",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a column of ids, split, batch size and order of the table's rows.

    Columns: column, data, kind, rows_of (the split), batch (ids), batches (counted), order, table_rows, row_factors;
    unique, prefixes (n_u and n_p of a table of three cores over the ids; medians over the batches), prefixes_p10,
    prefixes_p90; prefixes_2_of_4, prefixes_3_of_4 (of a table of four cores, as the source counts); peak_bytes (of the
    intermediates of a look-up and its backward, EcoRec unsliced, first batch); how.

    Training rows are shuffled, since the communities remember who stood beside whom.
    """
    return pd.DataFrame([row for column in columns(settings) for row in _of_column(column, settings)])


def _of_column(column: Column, settings: Settings) -> Iterator[dict]:
    info, orders = column.dataset.info, _orders(column)
    sizes = (settings.batches[0] // 4, *settings.batches)
    about = {"column": column.label, "data": info.title, "kind": info.kind}
    for rows_of, split in ((TRAIN, "train"), (HELDOUT, "heldout")):
        ids = column.ids(split)
        if rows_of == TRAIN:
            np.random.default_rng(settings.seed).shuffle(ids)
        for batch in (size for size in sizes if size <= ids.size):
            for order, rows in orders.items():
                found = counted([rows(part) for part in batches(ids, batch, settings.counted)], rows.rows, settings)
                yield {**about, "rows_of": rows_of, "batch": batch, "order": order, **found, "how": "measured"}


def _orders(column: Column) -> dict[str, FeatureMap]:
    """By name: id → row. `hashed` is the order of a hash: no two ids share a row, as they would in a hashed table, so
    that the orders differ in prefixes alone."""
    maps = {
        mode: reorder(column.dataset, ReorderOptions(mode=mode, features=(column.name,))).features[column.name]
        for mode in ("frequency", _EL_REC)
    }
    known = maps["frequency"]
    return {HASHED: FeatureMap(known.ids[np.argsort(hash64(0, known.ids))], known.spare)} | maps


def batches(ids: np.ndarray, size: int, most: int) -> Iterator[np.ndarray]:
    """At most so many whole batches of ids, spread over all of them."""
    for number in np.unique(np.linspace(0, ids.size // size - 1, most).astype(int)).tolist():
        yield ids[number * size : (number + 1) * size]


def counted(rows: list[np.ndarray], table_rows: int, settings: Settings) -> dict:
    """What `run` has of the batches of row numbers."""
    three, four = (suggest(table_rows, settings.dim, cores, settings.rank) for cores in (3, 4))
    shares = np.array([[*prefix_shares(part, three), *prefix_shares(part, four)] for part in rows])
    two_of_three, unique, two, three_of_four, _ = np.median(shares, axis=0)
    low, high = np.quantile(shares[:, 0], (0.1, 0.9))
    return {
        "batches": len(rows),
        "table_rows": table_rows,
        "row_factors": " × ".join(map(str, three.row_factors)),
        "unique": unique,
        "prefixes": two_of_three,
        "prefixes_p10": low,
        "prefixes_p90": high,
        "prefixes_2_of_4": two,
        "prefixes_3_of_4": three_of_four,
        "peak_bytes": peak_bytes(rows[0], three),
    }


def prefix_shares(rows: np.ndarray, shape: TTShape) -> list[float]:
    """[d − 1]: unique prefixes of 2 … d digits over rows [n] int64; those of d digits are the unique rows."""
    values, shares = np.unique(rows), []
    for p in reversed(shape.row_factors[1:]):
        shares.insert(0, values.size / rows.size)
        values = np.unique(values // p)
    return shares


def peak_bytes(rows: np.ndarray, shape: TTShape) -> int:
    """Of what EcoRec holds between input and output, forward and backward; each row a bag of its own."""
    bags, scheme, work = Bags.of(torch.from_numpy(rows), torch.ones(rows.size, dtype=torch.int64)), EcoRec(), Work()
    cores = [torch.rand(p, width) for p, width in zip(shape.row_factors, shape.widths, strict=True)]
    plan = scheme.prepare(shape, bags)
    out = scheme.forward(shape, cores, plan, work)
    scheme.backward(shape, cores, plan, out, [torch.zeros_like(core) for core in cores], work)
    return work.peak


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A column of panels for each column of ids: prefixes by order, unique ids; and the source's beside."""
    names = list(dict.fromkeys(frame["column"]))
    with plotting.style():
        figure = plotting.new_figure(2.7 * len(names) + 2.9, 5.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        panels = figure.subplots(2, len(names) + 1, sharey=True)
        for place, name in enumerate(names):
            for axes, rows_of in zip(panels[:, place], (TRAIN, HELDOUT), strict=True):
                lines = frame[(frame["column"] == name) & (frame["rows_of"] == rows_of)]
                _draw(axes, lines, rows_of)
            panels[0, place].set_title(name.replace(" (", "\n("), fontsize=8)
        for axes, rows_of in zip(panels[:, 0], (TRAIN, HELDOUT), strict=True):
            axes.set_ylabel(f"{rows_of}\n% of a batch's ids")
        _draw_published(panels[0, -1])
        panels[1, -1].axis("off")
        _legends(panels)
    return figure


def _draw(axes: Axes, lines: pd.DataFrame, rows_of: str) -> None:
    if lines.empty:
        axes.text(0.5, 0.5, "fewer rows than a batch", ha="center", transform=axes.transAxes, fontsize=8)
        axes.set_xticks([])
        return
    once = lines[lines["order"] == _EL_REC]
    axes.plot(once["batch"], 100 * once["unique"], color=plotting.INK, linestyle=":", label="unique ids")
    for number, (order, label) in enumerate(ORDERS.items()):
        line = lines[lines["order"] == order]
        axes.plot(line["batch"], 100 * line["prefixes"], label=f"prefixes, {label}", **plotting.series_style(number))
        low, high = 100 * line["prefixes_p10"], 100 * line["prefixes_p90"]
        axes.fill_between(line["batch"], low, high, alpha=0.15, color=plotting.SERIES_COLOURS[number], linewidth=0)
    _axes(axes, sorted(set(lines["batch"])))


def _axes(axes: Axes, sizes: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="batch, ids")
    ticks = sizes[:: max(1, len(sizes) // 3)]
    axes.set_xticks(ticks, [f"{size / 1024:g}k" if size >= 1024 else str(size) for size in ticks])
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def published() -> pd.DataFrame:
    """Figure 4 of the source, from the register: file_set, batch, and a share for each of the claim's labels."""
    rows = []
    for claim in register.claims():
        if claim.source == "ecorec-paper" and claim.where == "figure 4":
            found = re.search(r"file set (\w+), batch ([\d,]+)", claim.sentence)
            told = {"claim": claim.id, "file_set": found.group(1), "batch": int(found.group(2).replace(",", ""))}
            rows.append(told | dict(zip(claim.labels, claim.value, strict=True)))
    return pd.DataFrame(rows)


def _draw_published(axes: Axes) -> None:
    """Three bands from the least to the most of the file sets."""
    found = published().groupby("batch")
    for number, label in enumerate(("rows", "3-core prefixes", "2-core prefixes")):
        low, middle, high = (100 * getattr(found[label], name)() for name in ("min", "median", "max"))
        look = plotting.series_style(number + 3)
        axes.fill_between(low.index, low, high, alpha=0.25, color=look["color"], linewidth=0)
        axes.plot(middle.index, middle, label=label, **look)
    axes.set_title("published, figure 4: other data,\nfour cores; range of file sets", fontsize=8)
    _axes(axes, sorted(found.groups))


def _legends(panels: np.ndarray) -> None:
    ours, theirs, room = panels[0, 0], panels[0, -1], panels[1, -1]
    first = room.legend(*ours.get_legend_handles_labels(), loc="upper left", title="here, three cores", fontsize=8)
    room.add_artist(first)
    room.legend(*theirs.get_legend_handles_labels(), loc="lower left", title="published", fontsize=8)


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """Of every column the smallest and the largest batch of each split."""
    keys = frame.groupby(["column", "rows_of"])["batch"]
    ends = (frame["batch"] == keys.transform("min")) | (frame["batch"] == keys.transform("max"))
    return chosen(frame[ends].replace({"order": ORDERS}), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    lines = []
    for name, rows in frame[frame["rows_of"] == HELDOUT].groupby("column", sort=False):
        told = [_told(rows[rows["batch"] == size]) for size in sorted({rows["batch"].min(), rows["batch"].max()})]
        lines.append(f"* {name}: {'; '.join(told)}.")
    return Said("\n".join(["In batches that no order was made from (held-out rows):", "", *lines]))


def _told(rows: pd.DataFrame) -> str:
    at = rows.set_index("order")
    shares = ", ".join(f"{label} {share(at.loc[order, 'prefixes'])}" for order, label in ORDERS.items())
    return f"of {at['batch'].iloc[0]:,} ids {share(at['unique'].iloc[0])} are unique, and unique prefixes {shares}"


def answers(frame: pd.DataFrame) -> list[dict]:
    """Figure 4 by hashed video ids, and what EL-Rec's order saves; real rows of KuaiRand where there are any."""
    videos = frame[frame["column"].str.startswith("video_id")]
    found = []
    for _, claim in published().iterrows():
        at = videos[(videos["batch"] == claim["batch"]) & (videos["order"] == HASHED) & (videos["rows_of"] == TRAIN)]
        if len(at):
            row = at.iloc[0]
            obtained = [float(row[name]) for name in ("unique", "prefixes_2_of_4", "prefixes_3_of_4")]
            found.append(answer(claim["claim"], obtained, "measured", f"{row['column']}, hashed, shuffled, four cores"))
    late = videos[videos["rows_of"] == HELDOUT]
    if len(late):
        at = late[late["batch"] == (2048 if 2048 in set(late["batch"]) else late["batch"].min())].set_index("order")
        note = f"{at['column'].iloc[0]}, held-out batches of {at['batch'].iloc[0]:,}, over hashed ids"
        ratio = float(at.loc[_EL_REC, "prefixes"] / at.loc[HASHED, "prefixes"])
        found.append(answer("RL-P-026", ratio, "measured", note))
    return found
