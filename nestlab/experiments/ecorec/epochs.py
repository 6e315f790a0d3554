"""Held-out log loss and AUC over epochs: ordinary tables against tensor trains of several ranks, and what they weigh.

Predicted before the first run: tensor trains of rank 16 and more come within the interval of the AUC of ordinary tables
after the first epoch; rank 4 stays below it; ordinary tables, which have a row of their own for every id, overfit
first, so that their log loss rises again after the second epoch while that of small ranks still falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nestlab import plotting
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import opened
from nestlab.experiments.tables import Said, chosen
from nestlab.tracing.memory import DEVICE
from nestlab.training import History, Recipe, TrainOptions, assemble
from nestlab.training.metrics import auc_interval
from nestlab.training.tables import known_ids

Figures = dict[str, Any]
ROW = "ordinary rows"
DIM = 16  # as `nestlab train` has it
SHARE = 0.2  # tables with at least this share of the ids of the largest one become tensor trains
_DIGEST = {
    "name": "large tables",
    "epoch": "best epoch",
    "log_loss": "held-out log loss",
    "auc": "AUC",
    "auc_low": "95 % from",
    "auc_high": "to",
    "last_epoch": "last epoch",
    "last_log_loss": "its log loss",
    "last_auc": "its AUC",
    "weight_bytes": "weights of the large tables, MB",
    "compression": "× fewer",
    "tables_bytes": "all tables with all that is kept, MB",
    "peak_bytes": "peak, MB",
    "step_ms": "ms a step (not in turns)",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a kind of table and epoch: the same samples in the same order, the same dense part at the start.

    Columns: data, how, seed, tt_rank (0: ordinary rows), epoch, step, auc, log_loss, ne; auc_low, auc_high (95 %);
    weight_bytes (of the large tables alone), tables_bytes (of all, with all that is kept of them), peak_bytes
    (with what a step holds at most), step_ms.
    """
    name = settings.dataset if settings.dataset.startswith("kuairand") else "kuairand"
    dataset = opened(name, settings)
    twin = dataset.info.kind == "synthetic"
    ids = {feature: known_ids(dataset, feature) for feature in dataset.features}
    least = max(1, int(SHARE * max(ids.values())))
    large = tuple(feature for feature, count in ids.items() if count >= least)
    options = TrainOptions(
        dataset=name,
        data_root=settings.data_root,
        rows=settings.twin_rows if twin else settings.rows,
        batch_size=settings.epoch_batch,
        epochs=settings.epochs,
        evaluations=settings.epochs,
        dim=DIM,
        seed=settings.seed,
        device=settings.device,
    )
    trainings = {0: options}
    trainings |= {
        r: replace(options, techniques=f"table_kind=tt,tt_rank={r},tt_from={least}") for r in settings.epoch_ranks
    }
    known = {"data": dataset.info.title, "how": "measured", "seed": settings.seed}
    rows = [{**known, "tt_rank": rank, **row} for rank, each in trainings.items() for row in _trained(each, large)]
    return pd.DataFrame(rows)


def _trained(options: TrainOptions, large: tuple[str, ...]) -> Iterator[Figures]:
    """A row an epoch."""
    history, intervals = History(), []
    with assemble(options) as recipe:
        watched = replace(recipe, saving=replace(recipe.saving, history=history))
        watched.fit(report=lambda _: intervals.append(auc_interval(*history.last_look, seed=options.seed)))
        told = _bytes(recipe, large) | {"step_ms": 1e3 * history.train_seconds / history.own_steps}
    for number, (look, (low, high)) in enumerate(zip(history.evaluations, intervals, strict=True), 1):
        metrics = {name: look[name] for name in ("step", "auc", "log_loss", "ne")}
        yield {"epoch": number, **metrics, "auc_low": low, "auc_high": high, **told}


def _bytes(recipe: Recipe, large: tuple[str, ...]) -> Figures:
    """Of the large tables' weights, of all tables with all that is kept of them, and of all that a step holds."""
    store, memory = recipe.model.embedding, recipe.memory(recipe.trace()).set_index("kind")["peak_bytes"]
    trains = list(store.whole.own.values())
    weights = sum(weight.numel() * weight.element_size() for table in trains for weight in table.cores.weights)
    if not trains:
        weights = sum(store.export(name)["weight"].nbytes for name in large)
    products = max((table.work.peak for table in trains), default=0)
    tables = int(memory["tables"])
    return {"weight_bytes": weights, "tables_bytes": tables, "peak_bytes": tables + products + int(memory[DEVICE])}


def best_of(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a kind of table: its epoch of the least log loss, its last one beside, and how many times fewer weights the
    large tables have than ordinary rows. All kinds had as many looks at held-out data to choose from."""
    best = frame.loc[frame.groupby("tt_rank")["log_loss"].idxmin()].set_index("tt_rank", drop=False).sort_index()
    last = frame.loc[frame.groupby("tt_rank")["epoch"].idxmax()].set_index("tt_rank")
    best["last_epoch"], best["last_log_loss"], best["last_auc"] = last["epoch"], last["log_loss"], last["auc"]
    best["compression"] = best.loc[0, "weight_bytes"] / best["weight_bytes"]
    return best.assign(name=[name_of(rank) for rank in best.index])


def name_of(rank: int) -> str:
    return f"tensor trains of rank {rank}" if rank else ROW


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(best_of(frame).reset_index(drop=True), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    """Which ranks come up to ordinary rows, at what size, and whether anything overfits."""
    found = best_of(frame)
    row, trains = found.loc[0], found.drop(index=0)
    up = trains[trains["auc"] >= row["auc_low"]]
    told = "no rank comes" if up.empty else f"rank {' and '.join(map(str, up.index))} comes"
    ranks = "; ".join(
        f"rank {rank}: {line['compression']:.3g} times fewer weights, log loss {line['log_loss']:.4f}, AUC "
        f"{line['auc']:.4f}"
        for rank, line in trains.iterrows()
    )
    rises = found[found["epoch"] < found["last_epoch"]]
    over = f" Log loss rose again after its best epoch with {', '.join(rises['name'])}." if len(rises) else ""
    return Said(
        f"Each at its best epoch: ordinary rows have log loss {row['log_loss']:.4f} and AUC {row['auc']:.4f} (95 %: "
        f"{row['auc_low']:.4f} to {row['auc_high']:.4f}); {told} within that interval or above it. {ranks}."
        f"{over}"
    )


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Log loss and AUC over epochs, and the best log loss over the weights of the large tables."""
    found = best_of(frame)
    with plotting.style():
        figure = plotting.new_figure(10.5, 4.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        loss, auc, size = figure.subplots(1, 3)
        for number, rank in enumerate(found.index):
            lines, look = frame[frame["tt_rank"] == rank], plotting.series_style(number)
            loss.plot(lines["epoch"], lines["log_loss"], label=name_of(rank), **look)
            auc.plot(lines["epoch"], lines["auc"], **look)
            point = found.loc[rank]
            size.plot(point["weight_bytes"] / 1e6, point["log_loss"], **look | {"linestyle": "none"})
            text = name_of(rank).removeprefix("tensor trains of ")
            at = (point["weight_bytes"] / 1e6, point["log_loss"])
            size.annotate(text, at, (5, 5), textcoords="offset points", fontsize=7)
        _label(loss, "held-out log loss")
        _label(auc, "held-out AUC")
        rows = frame[frame["tt_rank"] == 0]
        auc.fill_between(rows["epoch"], rows["auc_low"], rows["auc_high"], color=plotting.IDLE, zorder=0)
        auc.set_title("band: 95 % interval of ordinary rows", fontsize=8)
        size.set(xlabel="weights of the large tables, MB", ylabel="best held-out log loss", xscale="log")
        size.margins(x=0.25, y=0.12)
        figure.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _label(axes: Axes, what: str) -> None:
    axes.set(xlabel="epoch", ylabel=what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.15)
