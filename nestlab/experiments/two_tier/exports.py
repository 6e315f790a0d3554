"""Full against incremental export: how much is written, and for how long, when only touched rows go out.

JD's article names incremental export without a figure (papers.md 4.2). Predicted before the first run: an increment has
the rows of its steps and no others, so it is smaller by the share of the table that they touch (on the real log some
4 % for one step, a third for fifty), and quicker by less, because every save opens and names the same number of files.
Found on KuaiRand-Pure (`quick`): 5 % and 57 %, bytes accordingly 17.7 and 1.7 to 1. A table of 4 MB takes 30 ms either
way: files are what that time goes into, not bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from nestlab import plotting
from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, Tiers, checkpoint
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, open_stream, rounds, slots_on
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, Trained, train

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # between a full save and the increment on it
CACHE_SHARE = 0.1


def measure(settings: Settings) -> pd.DataFrame:
    """A row a number of steps and repetition: first half of the stream, full save, so many steps, increment.

    Columns: repetition, steps_since, rows_full, rows_increment, bytes_full, bytes_increment, seconds_full,
    seconds_increment (until all is on the disk for good), ratio_bytes, ratio_seconds (full over increment; the full
    save is of the same moment, into a folder of its own), touched (distinct ids of those steps), adds_up (the full save
    and the increment, loaded, equal the table to the bit); cached_equals_flat (a table under a slot cache left the same
    files); how_obtained.
    """
    stream = open_stream(settings)
    same = cached_equals_flat(settings, stream)
    rows = []
    for repetition in rounds(settings):
        with TemporaryDirectory(prefix="nestlab-exports-") as folder:
            for row in _course(settings, stream, Path(folder)):
                rows.append({"repetition": repetition, **row, "cached_equals_flat": same, "how_obtained": "measured"})
    return pd.DataFrame(rows)


def _course(settings: Settings, stream: Stream, folder: Path) -> list[dict[str, Any]]:
    half = len(stream.train) // 2
    pipeline = Model(seed=settings.seed, device=settings.device).build(stream)
    store = pipeline.model.embedding
    train(pipeline, stream.train[:half])
    rows, at = [], half
    checkpoint.save(store, folder / "0")
    for number, steps in enumerate(_chosen(len(stream.train) - half), 1):
        batches = stream.train[at : at + steps]
        train(pipeline, batches)
        at += steps
        increment, seconds_increment = _timed(store, folder / str(number - 1), incremental=True)
        adds_up = _adds_up(settings, stream, store, folder / str(number - 1))
        full, seconds_full = _timed(store, folder / str(number), incremental=False)
        rows.append(
            {
                "steps_since": steps,
                "rows_full": full.count("rows"),
                "rows_increment": increment.count("rows"),
                "bytes_full": full.nbytes,
                "bytes_increment": increment.nbytes,
                "seconds_full": seconds_full,
                "seconds_increment": seconds_increment,
                "ratio_bytes": full.nbytes / increment.nbytes,
                "ratio_seconds": seconds_full / seconds_increment,
                "touched": _touched(batches),
                "adds_up": adds_up,
            }
        )
    return rows


def _chosen(room: int) -> list[int]:
    """The numbers of steps that fit one after another."""
    return [steps for steps, total in zip(STEPS, np.cumsum(STEPS), strict=True) if total <= room] or [room]


def _touched(batches: Sequence[Batch]) -> int:
    return sum(map(len, distinct_ids(tuple(batches))))


def _timed(store: EmbeddingStore, folder: Path, incremental: bool) -> tuple[checkpoint.Save, float]:
    started = time.perf_counter()
    save = checkpoint.save(store, folder, incremental=incremental)
    return save, time.perf_counter() - started


def _adds_up(settings: Settings, stream: Stream, store: EmbeddingStore, folder: Path) -> bool:
    """Whether a table loaded from the folder has the same ids, weights and states."""
    loaded = Model(seed=settings.seed, device=settings.device).store(stream.features)
    checkpoint.load(loaded, folder)
    pairs = ((loaded.export(name), store.export(name)) for name in stream.features)
    return all(one[part].equal(other[part]) for one, other in pairs for part in other)


def cached_equals_flat(settings: Settings, stream: Stream) -> bool:
    """Whether a table under a slot cache, not flushed by anyone, is saved as the files of one without."""
    tiers = Tiers(
        device_tier="slot_cache", cache_slots=slots_on(settings.device, CACHE_SHARE, stream), device=settings.device
    )
    flat, cached = (_trained(settings, stream, kind) for kind in (None, tiers))
    with TemporaryDirectory(prefix="nestlab-exports-") as folder:
        files = [_files(checkpoint.save(each.store, Path(folder) / str(n))) for n, each in enumerate((flat, cached))]
    return files[0] == files[1] and cached.store.counters.misses > 0


def _trained(settings: Settings, stream: Stream, tiers: Tiers | None) -> Trained:
    pipeline = Model(seed=settings.seed, tiers=tiers, device=settings.device).build(stream)
    return train(pipeline, stream.train[: max(2, len(stream.train) // 4)])


def _files(save: checkpoint.Save) -> list[tuple]:
    """What and how much is in each file, and its checksum."""
    return sorted((file.role, file.tables, file.rows, file.sha256) for file in save.files)


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """JD-A-017 (of the most steps between two saves, which favour the increment least) and RS-C-018."""
    widest = frame[frame["steps_since"] == frame["steps_since"].max()]
    ratio = float(widest["ratio_bytes"].mean()) if frame["adds_up"].all() else None
    spread = ", ".join(f"{row.steps_since} steps {row.ratio_bytes:.3g}" for row in _means(frame).itertuples())
    note = f"bytes full over increment: {spread}; full and increment add up to the table, to the bit"
    cached = bool(frame["cached_equals_flat"].all())
    found = {"JD-A-017": (ratio, note), "RS-C-018": (cached, "files of a cached table equal those of a flat one")}
    return [answer(i, value, "measured", text) for i, (value, text) in found.items()]


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a number of steps, means over the repetitions."""
    return _means(frame).drop(columns=["repetition", "touched", "adds_up", "cached_equals_flat"], errors="ignore")


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby("steps_since").mean(numeric_only=True).reset_index()


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Size, time and the ratio of the two, by the steps since the last save."""
    means = _means(frame)
    with plotting.style():
        figure = plotting.new_figure(10, 3.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        size, seconds, ratio = figure.subplots(1, 3)
        _draw_pair(size, frame, "bytes", 1e6, "size (MB)")
        _draw_pair(seconds, frame, "seconds", 1e-3, "time until on disk (ms)")
        for number, (what, label) in enumerate((("bytes", "of bytes"), ("seconds", "of time"))):
            ratio.plot(means["steps_since"], means[f"ratio_{what}"], label=label, **plotting.series_style(number + 2))
        ratio.axhline(1, color=plotting.INK, linewidth=0.8)
        ratio.set(ylabel="full over incremental", yscale="log")
        ratio.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ratio.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        for axes in (size, seconds, ratio):
            axes.set(xscale="log", xlabel="training steps since the full export")
            axes.set_xticks(means["steps_since"], [f"{steps:g}" for steps in means["steps_since"]])
            axes.minorticks_off()
            axes.legend()
    return figure


def _draw_pair(axes: Axes, frame: pd.DataFrame, what: str, unit: float, label: str) -> None:
    """Means, and bars from the least to the most of the repetitions."""
    for number, kind in enumerate(("full", "increment")):
        told = frame.groupby("steps_since")[f"{what}_{kind}"]
        mean = told.mean() / unit
        spread = np.stack([mean - told.min() / unit, told.max() / unit - mean])
        name = "full" if kind == "full" else "incremental"
        axes.errorbar(mean.index, mean, spread, label=name, capsize=2, **plotting.series_style(number))
    axes.set(ylabel=label, ylim=(0, None))
