"""The first batches after a start: tables empty or loaded, the cache empty or filled with the hottest ids.

All starts share one dense part, trained with the earlier table, so that a difference in the loss is the tables'.
Predicted before the first run: the cache is full of what is used within two batches however it starts, so that filling
it first helps one or two batches; a loaded table starts below the loss that an empty one needs tens of batches for.
Found on the real log: the second is so, the first was wrong. With a quarter of the ids in slots it takes some fifteen
batches until the hit share of an unfilled cache is that of a filled one, because the hot ids of many batches, not of
two, are what hits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nestlab import plotting
from nestlab.embedding import Tiers, checkpoint
from nestlab.embedding.features import FeatureRules
from nestlab.experiments.two_tier.one_pass import (
    Stream,
    distinct_ids,
    ids_by_feature,
    largest_batch,
    open_stream,
    rounds,
)
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, insert, train

CACHE_SHARE = 0.25  # slots over the distinct ids of the stream
ADMIT_FROM = 2
FIRST = 10  # batches over which a start is judged


@dataclass(frozen=True)
class Start:
    """How one of the compared trainings begins."""

    name: str
    loaded: bool
    hottest: bool = False
    admits: bool = False


STARTS = (
    Start("empty table", loaded=False),
    Start(f"empty table, admission from {ADMIT_FROM}", loaded=False, admits=True),
    Start("loaded table", loaded=True),
    Start(f"loaded table, admission from {ADMIT_FROM}", loaded=True, admits=True),
    Start("loaded table, hottest ids in the cache", loaded=True, hottest=True),
)


def measure(settings: Settings) -> pd.DataFrame:
    """A row a start, repetition (a seed each) and batch.

    The first half of the stream trains the earlier table, whose checkpoint is loaded; the second half is what follows.

    Columns: start, repetition, seed, batch (from 1), loss_nats (before the batch is learnt), hit_share, refused_share
    and new_share (of the batch's unique keys: in a slot already, refused by admission, inserted), rows (in the table),
    slots; how_obtained.
    """
    stream = open_stream(settings)
    half = len(stream.train) // 2
    slots = _slots(stream)
    frames = []
    for repetition in rounds(settings):
        seed = settings.seed + repetition
        with TemporaryDirectory(prefix="nestlab-cold-") as folder:
            earlier = train(_model(settings, seed, slots, False).build(stream), stream.train[:half]).pipeline
            checkpoint.save(earlier.model.embedding, Path(folder))
            dense = deepcopy(earlier.model.dense.state_dict())
            for start in STARTS:
                course = _course(start, _model(settings, seed, slots, start.admits), stream, Path(folder), dense)
                frames.append(pd.DataFrame(course).assign(start=start.name, repetition=repetition, seed=seed))
    return pd.concat(frames, ignore_index=True).assign(slots=slots, how_obtained="measured")


def _model(settings: Settings, seed: int, slots: int, admits: bool) -> Model:
    rules = FeatureRules(admit="count", admit_threshold=ADMIT_FROM) if admits else FeatureRules()
    tiers = Tiers(
        device_tier="slot_cache", cache_policy="lru", cache_slots=slots, features=rules, device=settings.device
    )
    return Model(seed=seed, tiers=tiers, device=settings.device)


def _slots(stream: Stream) -> int:
    """A share of the distinct ids, and no less than two batches in flight need beside the ids filled in before."""
    return max(int(CACHE_SHARE * sum(map(len, distinct_ids(stream.train)))), 2 * largest_batch(stream))


def _course(start: Start, model: Model, stream: Stream, folder: Path, dense: dict) -> Iterator[dict[str, Any]]:
    """The second half of the stream, a row a batch."""
    pipeline = model.build(stream)
    store, half = pipeline.model.embedding, len(stream.train) // 2
    pipeline.model.dense.load_state_dict(dense)
    if start.loaded:
        with warnings.catch_warnings():  # that the earlier table was trained without admission, which is meant
            warnings.simplefilter("ignore", UserWarning)
            checkpoint.load(store, folder)
    if start.hottest:
        insert(store, hottest(stream, half, _slots(stream) - largest_batch(stream)))
    course = [store.counters.as_dict()]
    sizes: list[int] = []

    def note(store) -> None:
        course.append(store.counters.as_dict())
        sizes.append(sum(len(host.index) for host in store.hosts))

    losses = train(pipeline, stream.train[half:], note).losses
    for number, (before, after) in enumerate(pairwise(course)):
        gained = {name: after[name] - before[name] for name in ("known", "inserts", "refused", "hits")}
        asked = gained["known"] + gained["inserts"] + gained["refused"]
        yield {
            "batch": number + 1,
            "loss_nats": losses[number],
            "hit_share": gained["hits"] / asked,
            "refused_share": gained["refused"] / asked,
            "new_share": gained["inserts"] / asked,
            "rows": sizes[number],
        }


def hottest(stream: Stream, half: int, count: int) -> list[np.ndarray]:
    """[F] arrays of int64: the `count` ids, over all columns, that occur most in the first `half` batches."""
    columns = [np.concatenate(parts) for parts in zip(*map(ids_by_feature, stream.train[:half]), strict=True)]
    ids, uses = zip(*(np.unique(column, return_counts=True) for column in columns), strict=True)
    column_of = np.repeat(np.arange(len(ids)), [len(each) for each in ids])
    order = np.argsort(-np.concatenate(uses), kind="stable")[:count]
    chosen, chosen_column = np.concatenate(ids)[order], column_of[order]
    return [chosen[chosen_column == column] for column in range(len(ids))]


def first_batches(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a start: means over the first batches (loss, hit share) and over the rest, and the rows at the end."""
    early = frame[frame["batch"] <= FIRST].groupby("start", sort=False)
    late = frame[frame["batch"] > FIRST].groupby("start", sort=False)
    last = frame[frame["batch"] == frame["batch"].max()].groupby("start", sort=False)
    table = early[["loss_nats", "hit_share", "refused_share"]].mean().add_prefix(f"first_{FIRST}_")
    return (
        table.join(late[["loss_nats", "hit_share"]].mean().add_prefix("later_")).join(last["rows"].mean()).reset_index()
    )


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """None: no source says anything of a cold start."""
    return []


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Hit share over the first batches; the loss against that of the empty table, summed over the batches."""
    means = frame.groupby(["start", "batch"], sort=False)[["loss_nats", "hit_share"]].mean().reset_index()
    with plotting.style():
        figure = plotting.new_figure(10, 4.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        hits, loss = figure.subplots(1, 2)
        _draw_hits(hits, means, frame["slots"].iloc[0])
        _draw_loss(loss, means)
        figure.legend(*hits.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_hits(axes: Axes, means: pd.DataFrame, slots: float) -> None:
    for number, (start, lines) in enumerate(means[means["batch"] <= 2 * FIRST].groupby("start", sort=False)):
        look = plotting.series_style(number) | {"markersize": 4}
        axes.plot(lines["batch"], 100 * lines["hit_share"], label=start, **look)
    axes.set(xlabel="batch after the start", ylabel="unique keys in a slot already (%)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_title(f"cache of {slots:,.0f} slots; without admission the two lines from 0 are one", fontsize=8)


def _draw_loss(axes: Axes, means: pd.DataFrame) -> None:
    """Single batches differ by far more than starts do: the difference, batch by batch, is what can be seen."""
    courses = means.pivot(index="batch", columns="start", values="loss_nats")
    for number, start in enumerate(start.name for start in STARTS):
        saved = (courses[start] - courses[STARTS[0].name]).cumsum()
        look = plotting.series_style(number) | {"marker": ""}
        axes.plot(saved.index, saved, **look)
    axes.set(xlabel="batches after the start", ylabel="loss over that of the empty table,\nsummed over batches (nats)")
    axes.set_title(
        "what is in the cache changes no loss:\nboth loaded tables without admission are one line", fontsize=8
    )
