"""JD's argument for a map: a table sized for the ids that may come is large, and a small one makes ids share rows.

The article gives the idea and no figure (papers.md 4.2). Predicted before the first run: ids of the real log reach ten
digits, so that a table over their range takes terabytes; a map takes some 160 bytes a row, of which the index is a
fifth; hashing into a quarter of the rows costs a few thousandths of AUC, into a sixty-fourth about a hundredth.
Found on KuaiRand-Pure (`quick`): 1.2 TB, 162 bytes, 0.004 and 0.016, the intervals of which overlap; a row for every id
there is learns what the map learns to the last bit, in half as many bytes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from nestlab import data, plotting
from nestlab.embedding import Tiers, optimizer
from nestlab.embedding.features import FeatureRules
from nestlab.experiments.two_tier.hashing import FEWEST, hashed, sharing, sizes
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import DIM, LR, OPTIMIZER, Model, insert, quality, table_size, train
from nestlab.pipeline import Pipeline

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 16, 1 / 64)  # of the distinct ids
MAP, ADMITTED, VOCABULARY, RANGE, HASHED = "map", "map, admission", "vocabulary", "id range", "hashed"
ADMIT_FROM = 2
COMPUTED = "computed"
_MOST_ROWS = 4 << 20  # of a table that is allocated whole
_BYTES = ("index_bytes", "record_bytes", "rules_bytes")


def measure(settings: Settings) -> pd.DataFrame:
    """A row a kind of table and repetition (a seed each).

    Columns: kind (`map`: rows appear with ids; `map, admission`: from the second occurrence; `vocabulary`: a row
    for each id of the whole data set, allocated before; `id range`: a row for each number between the least and the
    largest id of a column; `hashed`: into a share of the distinct ids), share (NaN where not hashed), repetition, seed,
    rows, index_bytes, record_bytes, rules_bytes, total_bytes, bytes_a_row, sharing_ids (share of the distinct training
    ids that share their row), auc, auc_low, auc_high, log_loss_nats (NaN where nothing was trained); how_obtained:
    measured, or computed from the sizes where the table is too large to allocate.
    """
    stream = open_stream(settings)
    vocabulary = _vocabulary(settings)
    rows = [_id_range(vocabulary)]
    for repetition in rounds(settings):
        seed = settings.seed + repetition
        for row in _trained(settings, stream, vocabulary, seed):
            rows.append({"repetition": repetition, "seed": seed, **row})
    frame = pd.DataFrame(rows).astype(dict.fromkeys(("rows", *_BYTES), float))  # a range may exceed 64 bits
    frame["total_bytes"] = frame[list(_BYTES)].sum(axis=1)
    return frame.assign(bytes_a_row=frame["total_bytes"] / frame["rows"])


def _trained(settings: Settings, stream: Stream, vocabulary: list[np.ndarray], seed: int) -> Iterable[dict[str, Any]]:
    first = Model(seed=seed, device=settings.device)
    yield _map(first, stream, MAP)
    rules = FeatureRules(admit="count", admit_threshold=ADMIT_FROM)
    tiers = Tiers(features=rules, device=settings.device)
    yield _map(Model(seed=seed, tiers=tiers, device=settings.device), stream, ADMITTED)
    yield _static(first, stream, vocabulary)
    for share in SHARES:
        yield _hashed(first, stream, share)


def _map(model: Model, stream: Stream, kind: str) -> dict[str, Any]:
    pipeline = train(model.build(stream), stream.train).pipeline
    return {"kind": kind, **_size(pipeline), "sharing_ids": 0.0, **quality(pipeline, stream.heldout, model.seed), **HOW}


HOW = {"how_obtained": "measured"}


def _size(pipeline: Pipeline) -> dict[str, int]:
    size = table_size(pipeline.model.embedding)
    return {name: size[name] for name in ("rows", *_BYTES)}


def _static(model: Model, stream: Stream, vocabulary: list[np.ndarray]) -> dict[str, Any]:
    """Every id of the data set has its row before the first step; computed only where that is too much."""
    count = sum(map(len, vocabulary))
    if count > _MOST_ROWS:
        return {"kind": VOCABULARY, **_computed(count), "sharing_ids": 0.0}
    pipeline = model.build(stream)
    insert(pipeline.model.embedding, vocabulary)
    train(pipeline, stream.train)
    return {
        "kind": VOCABULARY,
        **_size(pipeline),
        "sharing_ids": 0.0,
        **quality(pipeline, stream.heldout, model.seed),
    } | HOW


def _hashed(model: Model, stream: Stream, share: float) -> dict[str, Any]:
    rows = sizes(stream, share)
    small = hashed(stream, rows)
    pipeline = train(model.build(small), small.train).pipeline
    kept = [n or len(ids) for n, ids in zip(rows, distinct_ids(stream.train), strict=True)]
    size = {**_computed(sum(kept)), "index_bytes": 0, "sharing_ids": sharing(stream, rows)}
    return {"kind": HASHED, "share": share, **size, **quality(pipeline, small.heldout, model.seed), **HOW}


def _vocabulary(settings: Settings) -> list[np.ndarray]:
    """[F] arrays [n] int64: the distinct ids of all rows, held-out ones included."""
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    return distinct_ids(tuple(dataset.batches("all", 1 << 16)))


def _id_range(vocabulary: list[np.ndarray]) -> dict[str, Any]:
    """Columns with few ids keep a row an id: theirs are words, numbered by the loader."""
    wide = [len(ids) >= FEWEST for ids in vocabulary]
    spans = [int(ids.max()) - int(ids.min()) + 1 if w else len(ids) for ids, w in zip(vocabulary, wide, strict=True)]
    return {"kind": RANGE, "repetition": 0, **_computed(sum(spans)), "index_bytes": 0, "sharing_ids": 0.0}


def _computed(rows: int) -> dict[str, Any]:
    """Records of the study's tables, and a dictionary of id and row, 16 bytes an entry and half full at most."""
    record = 4 * (DIM + optimizer(OPTIMIZER, lr=LR).state_width(DIM))
    index = 16 << (2 * rows - 1).bit_length()
    return {
        "rows": rows,
        "index_bytes": index,
        "record_bytes": rows * record,
        "rules_bytes": 0,
        "how_obtained": COMPUTED,
    }


def record_widths() -> pd.DataFrame:
    """optimizer, dim, states (a weight's, or a row's one), record_width, record_bytes (float32)."""
    rows = []
    for name, states in STATES.items():
        (group,) = Model(optimizer=name).store(("column",)).groups
        row = {"optimizer": name, "dim": group.dim, "states": states, "state_width": group.state_width}
        rows.append(row | {"record_width": group.record_width, "record_bytes": 4 * group.record_width})
    return pd.DataFrame(rows)


# What each row optimizer keeps beside the weights.
STATES = {"sgd": "none", "adagrad": "a sum a weight", "rowwise_adagrad": "a sum a row", "lazy_adam": "two a weight"}


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """None: the article gives no figure, and what a record holds is tried by `table_checks`."""
    return []


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a kind of table, means over the repetitions."""
    shown = ["rows", "total_bytes", "bytes_a_row", "sharing_ids", "auc", "auc_low", "auc_high", "log_loss_nats"]
    return _means(frame)[["kind", "share", *shown]]


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(["kind", "share"], sort=False, dropna=False).mean(numeric_only=True).reset_index()


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bytes against AUC, ids that share a row, and what a row of each kind takes."""
    means = _means(frame)
    with plotting.style():
        figure = plotting.new_figure(10, 4.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        quality_by_size, shared, row = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _draw_quality(quality_by_size, means)
        _draw_sharing(shared, means[means["kind"] == HASHED])
        _draw_row(row, means[means["kind"].isin((MAP, ADMITTED, VOCABULARY))])
        figure.legend(*quality_by_size.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    return figure


def _draw_quality(axes: Axes, means: pd.DataFrame) -> None:
    for number, kind in enumerate((HASHED, MAP, ADMITTED, VOCABULARY)):
        lines = means[means["kind"] == kind]
        if lines["auc"].isna().all():
            continue
        spread = np.abs(lines[["auc_low", "auc_high"]].to_numpy().T - lines["auc"].to_numpy())
        look = plotting.series_style(number) | ({} if kind == HASHED else {"linestyle": "none"})
        axes.errorbar(lines["total_bytes"] / 1e6, lines["auc"], spread, label=LABELS[kind], capsize=2, **look)
    for _, line in means[(means["kind"] == HASHED) & (means["share"] < 1)].iterrows():
        place = {"textcoords": "offset points", "fontsize": 7, "ha": "right"}
        axes.annotate(f"1/{1 / line['share']:.0f}", (line["total_bytes"] / 1e6, line["auc"]), (-4, 4), **place)
    whole = means.loc[means["kind"] == RANGE, "total_bytes"].iloc[0]
    axes.set(xscale="log", xlabel="bytes of the tables (MB)", ylabel="held-out AUC, 95 % interval")
    axes.set_title(f"a table over the range of the ids:\n{_bytes(whole)} (computed)", fontsize=8)
    axes.margins(x=0.12, y=0.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


LABELS = {
    HASHED: "ids hashed into a share of the rows",
    MAP: "map: a row an id that came",
    ADMITTED: f"map: from occurrence {ADMIT_FROM}",
    VOCABULARY: "a row for every id there is",
}


def _draw_sharing(axes: Axes, lines: pd.DataFrame) -> None:
    axes.plot(lines["share"], 100 * lines["sharing_ids"], **plotting.series_style(0))
    axes.set_xscale("log", base=2)
    axes.set_xticks(SHARES, [f"1/{1 / share:.0f}" if share < 1 else "1" for share in SHARES])
    axes.set(xlabel="rows, as a share of the distinct ids", ylabel="ids that share their row (%)", ylim=(0, 105))
    axes.set_title("hashing makes ids share rows;\nin a map none does", fontsize=8)


def _draw_row(axes: Axes, lines: pd.DataFrame) -> None:
    bottom = np.zeros(len(lines))
    for number, (column, label) in enumerate(zip(_BYTES, ("index", "record", "admission"), strict=True)):
        height = (lines[column] / lines["rows"]).to_numpy()
        axes.bar(range(len(lines)), height, 0.6, bottom, label=label, **plotting.bar_style(number))
        bottom += height
    names = {MAP: "map", ADMITTED: "map with\nadmission", VOCABULARY: "every id\nthere is"}
    axes.set_xticks(range(len(lines)), [names[kind] for kind in lines["kind"]])
    axes.set(ylabel="bytes a row", ylim=(0, 1.45 * bottom.max()))
    axes.set_title("what a row takes\n(index at most half full)", fontsize=8)
    axes.legend(loc="upper left", ncols=2)


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e3:,.0f} kB"
