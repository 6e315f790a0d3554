"""Which rule puts which samples together: how much less comes again between micro-batches, and how long it takes.

On batches of user and video keys (where the data set has them), as the article's figure is said to be of KuaiRand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import data, plotting
from nestlab.batch import Batch
from nestlab.batching import SampleKeys, cost, reduction, rule, sample_keys
from nestlab.errors import UserError
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.experiments.nestpipe.stream import runs
from nestlab.experiments.tables import Said, answer, chosen, rounded

BATCH, PARTS = 4096, 8
_KEYS = ("user_id", "video_id")
RULES = ("kmeans", "greedy")
_REPEATS = 3
_DIGEST = {
    "rule": "rule",
    "reduction": "removed (median batch), %",
    "reduction_least": "worst batch, %",
    "reduction_most": "best batch, %",
    "rows": "rows a batch",
    "rows_in_time_order": "rows in time order",
    "rows_at_least": "rows at least",
    "ms_a_batch": "time a batch, ms",
    "batches": "batches",
    "samples": "samples a batch",
    "keys": "keys",
}


def measure(settings: Settings) -> pd.DataFrame:
    """A row a rule (and sorting by one column): reduction (median over batches, worst, best), cost and its bound in
    rows, milliseconds a batch, on one thread."""
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    size = min(BATCH, 2 * settings.batch_size)
    loader = dataset.batches("train", size, drop_last=True)
    if not len(loader):
        raise UserError(f"nestpipe: {dataset.info.rows} rows are no batch of {size} samples; use more rows")
    names = _KEYS if set(_KEYS) <= set(dataset.features) else dataset.features[:2]
    batches = [
        (batch, sample_keys(batch, {name: name for name in names})) for batch in _spread(loader, settings.clustered)
    ]
    real = dataset.info.kind == "real" and dataset.info.id.startswith("kuairand")
    common = {"data": dataset.info.title, "real_kuairand": real, "samples": size, "parts": PARTS, "how": "measured"}
    rows = [_row(name, [_sorted(b, k, name) for b, k in batches], batches) for name in names]
    chosen = {name: rule(name) for name in RULES}
    rows += [_row(name, [_timed(chosen[name], keys) for _, keys in batches], batches) for name in RULES]
    return pd.DataFrame([row | common | {"keys": ", ".join(names)} for row in rows])


def _spread(loader: data.Loader, count: int) -> Iterator[Batch]:
    """At most so many batches, evenly over all of a loader's; the others are not read."""
    for number in np.unique(np.linspace(0, len(loader) - 1, count).astype(int)).tolist():
        loader.begin_at(data.Position(0, number))
        yield next(iter(loader))


def _sorted(batch: Batch, keys: SampleKeys, column: str) -> tuple[np.ndarray, float]:
    """Samples in the order of one column's ids; a missing id comes first. No time is taken."""
    number = batch.features.index(column)
    lengths = batch.feature_lengths()[number].numpy()
    first = np.full(batch.size, np.iinfo(np.int64).min)
    starts = np.cumsum(lengths) - lengths
    first[lengths > 0] = runs(batch)[number][starts[lengths > 0]]
    return np.argsort(first, kind="stable"), float("nan")


def _timed(chosen, keys: SampleKeys) -> tuple[np.ndarray, float]:
    taken = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        order = chosen.order(keys, PARTS)
        taken.append(time.perf_counter() - started)
    return order, 1e3 * float(np.median(taken))


def _row(name: str, orders: list[tuple[np.ndarray, float]], batches: list[tuple[Batch, SampleKeys]]) -> dict:
    reached = [reduction(keys, PARTS, order) for (order, _), (_, keys) in zip(orders, batches, strict=True)]
    costs = [cost(keys, PARTS, order) for (order, _), (_, keys) in zip(orders, batches, strict=True)]
    return {
        "rule": name if name in RULES else f"sorted by {name}",
        "reduction": float(np.median(reached)),
        "reduction_least": min(reached),
        "reduction_most": max(reached),
        "rows": float(np.mean(costs)),
        "rows_in_time_order": float(np.mean([cost(keys, PARTS) for _, keys in batches])),
        "rows_at_least": float(np.mean([keys.unique for _, keys in batches])),
        "batches": len(batches),
        "ms_a_batch": float(np.median([seconds for _, seconds in orders])),
    }


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bars: the share of the duplicates between micro-batches that a rule removes, the median batch; lines from the
    worst batch to the best. Numbers stand beside the axis, which ends at 1: more cannot be removed."""
    with plotting.style():
        figure = plotting.new_figure(9.0, 1.6 + 0.5 * len(frame))
        axes = figure.add_subplot()
        spread = (frame["reduction"] - frame["reduction_least"], frame["reduction_most"] - frame["reduction"])
        axes.barh(frame["rule"], frame["reduction"], 0.66, xerr=spread, capsize=3, **plotting.bar_style(0))
        for y, row in enumerate(frame.itertuples()):
            took = "" if np.isnan(row.ms_a_batch) else f", {row.ms_a_batch:.3g} ms a batch"
            beside = axes.get_yaxis_transform()  # to the right of the axis, whatever its scale
            axes.text(1.01, y, f"{row.reduction:.3f}{took}", va="center", fontsize=8, transform=beside)
        axes.set(ylim=(len(frame) - 0.5, -0.5), xlim=(min(0, frame["reduction_least"].min() - 0.05), 1))
        told = f"bars: median of {frame['batches'].iloc[0]} batches, lines: worst to best" if "batches" in frame else ""
        axes.set_xlabel(f"of the rows that come again in another micro-batch, the share removed (1: all)\n{told}")
        axes.grid(False, axis="y")
        axes.set_title(title)
    return figure


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    rules = frame.set_index("rule")
    greedy, kmeans = rules.loc["greedy"], rules.loc["kmeans"]
    sorts = frame[frame["rule"].str.startswith("sorted")]
    best = sorts.loc[sorts["reduction"].idxmax()]
    order = "more" if greedy["reduction"] > kmeans["reduction"] else "no more"
    return Said(
        f"In time order the {PARTS} micro-batches of a batch of {greedy['samples']:,} samples receive "
        f"{rounded(greedy['rows_in_time_order'])} rows, where {rounded(greedy['rows_at_least'])} would do. K-means on "
        f"key sets, the article's way, removes {share_of(kmeans)} of what comes again, *greedy* {share_of(greedy)}: "
        f"{order} than K-means; {best['rule']}, the better of the plain sorts, removes {share_of(best)}. NestLab's "
        "preset `nestpipe` takes *greedy*."
    )


def share_of(row: pd.Series) -> str:
    return f"{row['reduction']:.1%}"


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-A-014 and NP-A-015 of K-means, which the article names; on real rows of KuaiRand alone."""
    rules = frame.set_index("rule")
    kmeans, greedy = rules.loc["kmeans"], rules.loc["greedy"]
    found = [
        answer(
            "NP-P-027",
            float(greedy["rows"] / greedy["rows_in_time_order"]),
            "measured",
            f"greedy by overlap, {greedy['data']}",
        ),
        answer("NP-A-014", float(kmeans["rows"] / kmeans["rows_in_time_order"]), "measured", str(kmeans["data"])),
    ]
    if kmeans["real_kuairand"]:
        note = f"K-means, which the article names; our greedy rule removes {100 * greedy['reduction']:.1f} %"
        found.append(answer("NP-A-015", 100 * float(kmeans["reduction"]), "measured", note))
    return found
