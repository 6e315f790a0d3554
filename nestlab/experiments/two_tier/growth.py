"""Tables that grow from empty while training runs: is any step longer for it? And rows that appear when ids do.

Predicted before the first run: on the real log the index doubles a dozen times and no step shows it, since a rehash of
some ten thousand keys takes less than a millisecond. With millions of keys the one-piece index stops its caller for
tens of milliseconds at each doubling, hundreds of times a usual call; 256 buckets that grow apart never do.
Found with 4 million keys: 237 ms at the last doubling, 860 times a usual call of 0.28 ms; in buckets a call takes
0.65 ms, and the longest 8 ms. On KuaiRand-Pure the longest step that grew took 1.2 to 1.5 times the median, as did the
longest of a table whose size was given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding import KeySet, Tiers
from nestlab.embedding.buckets import BucketedIndex
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, ids_by_feature, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, equal, insert, table_size, train_together

BUCKETS = 256  # JD's article
CALL_KEYS = 8192
PIECES, SPREAD, GIVEN = "one piece", f"{BUCKETS} buckets", "one piece, size given"
TRAINING, ALONE = "training", "index alone"
LONG = 3.0  # times the median: what counts as a long step
MILLION = 1 << 20


def measure(settings: Settings) -> pd.DataFrame:
    """A row a part, index, repetition and step.

    Columns: part (`training`, or `index alone`: calls of 8,192 new SYNTHETIC ids each), index (`one piece`, `256
    buckets`, and for the comparison `one piece, size given`), repetition, step, step_ms, rows, index_bytes,
    record_bytes, grew (the index did in this step); same_as_given_size (losses, weights and states equal those of a
    table whose size was given, to the bit) and first_values_fixed (untouched rows take no memory, and a row's first
    value does not depend on when it is seen), of the training; how_obtained.
    """
    stream = open_stream(settings)
    fixed = first_values_fixed(stream, settings)
    frames = []
    for repetition in rounds(settings, most=5, least=3):
        trainings = _trainings(settings, stream).assign(first_values_fixed=fixed)
        alone = pd.concat([_fill(index, _keys(settings)) for index in (PIECES, SPREAD)])
        frames += [trainings.assign(repetition=repetition), alone.assign(repetition=repetition)]
    return pd.concat(frames, ignore_index=True).assign(how_obtained="measured")


def _trainings(settings: Settings, stream: Stream) -> pd.DataFrame:
    """The same training three times, in turn: with room for all keys, and from empty in one piece and in buckets."""
    enough = max(len(ids) for ids in distinct_ids(stream.train))
    kinds = {
        GIVEN: _model(settings, initial_rows=enough),
        PIECES: _model(settings),
        SPREAD: _model(settings, index_buckets=BUCKETS),
    }
    courses: list[list[dict[str, int]]] = [[] for _ in kinds]
    observers = [lambda store, course=course: course.append(table_size(store)) for course in courses]
    trained = train_together([model.build(stream) for model in kinds.values()], stream.train, observers)
    frames = []
    for index, course, each in zip(kinds, courses, trained, strict=True):
        frame = pd.DataFrame(course)[["rows", "index_bytes", "record_bytes"]]
        frame = frame.assign(part=TRAINING, index=index, step=range(1, len(course) + 1), step_ms=each.step_ms)
        frames.append(frame.assign(grew=_grew(frame), same_as_given_size=equal(each, trained[0], stream)))
    return pd.concat(frames)


def _model(settings: Settings, initial_rows: int = 1, index_buckets: int = 1) -> Model:
    tiers = Tiers(index_buckets=index_buckets, device=settings.device)
    return Model(seed=settings.seed, tiers=tiers, initial_rows=initial_rows, device=settings.device)


def _grew(frame: pd.DataFrame) -> np.ndarray:
    return np.diff(frame["index_bytes"].to_numpy(), prepend=frame["index_bytes"].iloc[0]) > 0


def first_values_fixed(stream: Stream, settings: Settings) -> bool:
    """Whether rows appear with their ids, and with values that do not depend on when."""
    stores = [_model(settings).build(stream).model.embedding for _ in range(2)]
    empty = all(table_size(store)["rows"] == table_size(store)["record_bytes"] == 0 for store in stores)
    before = {name: stores[0].full_weight(name, ids) for name, ids in _by_name(stream)}
    for store, batches in zip(stores, (stream.train, stream.train[::-1]), strict=True):
        for batch in batches:
            insert(store, [np.unique(ids) for ids in ids_by_feature(batch)])
    exports = [{name: store.export(name) for name in stream.features} for store in stores]
    same = all(e[name]["weight"].equal(before[name]) for e in exports for name in stream.features)
    exact = all(size["rows"] == sum(map(len, before.values())) for size in map(table_size, stores))
    return empty and same and exact


def _by_name(stream: Stream) -> Iterator[tuple[str, np.ndarray]]:
    return zip(stream.features, distinct_ids(stream.train), strict=True)


def _keys(settings: Settings) -> int:
    """How many keys the index alone is filled with."""
    return MILLION // 4 if settings.seconds < 10 else 4 * MILLION if settings.seconds < 100 else 8 * MILLION


def _fill(kind: str, keys: int) -> pd.DataFrame:
    """New keys, call after call, into an index that starts empty."""
    index = KeyIndex(1) if kind == PIECES else BucketedIndex(1, BUCKETS)
    book = Rows(keys, 1)
    rows = []
    for first in range(0, keys, CALL_KEYS):
        # An odd factor modulo 2^64 sends different numbers to different ids, spread over all of int64.
        ids = (np.arange(first, first + CALL_KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        call = KeySet(ids, [0, CALL_KEYS])
        started = time.perf_counter()
        index.find_or_insert(call, book)
        rows.append({"step_ms": 1e3 * (time.perf_counter() - started), "rows": len(index), "index_bytes": index.nbytes})
    frame = pd.DataFrame(rows)
    return frame.assign(part=ALONE, index=kind, step=range(1, len(rows) + 1), record_bytes=0, grew=_grew(frame))


def stops(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a part and index: does growth stop it?

    Each step counts with its shortest time over the repetitions, which is what the work itself takes: what other
    programs of the machine add is not the same in all of them. Columns: steps, grew (steps in which the index did),
    median_ms, longest_ms, longest_over_median, long_share (of steps over 3 medians), longest_when_it_grew_ms.
    """
    least = frame.groupby(["part", "index", "step"], sort=False).agg(ms=("step_ms", "min"), grew=("grew", "first"))
    rows = []
    for (part, index), steps in least.groupby(["part", "index"], sort=False):
        median, longest = steps["ms"].median(), steps["ms"].iloc[1:].max()
        rows.append({"part": part, "index": index, "steps": len(steps), "grew": int(steps["grew"].sum())})
        rows[-1] |= {"median_ms": median, "longest_ms": longest, "longest_over_median": longest / median}
        rows[-1]["long_share"] = float((steps["ms"].iloc[1:] > LONG * median).mean())
        rows[-1]["longest_when_it_grew_ms"] = steps["ms"].iloc[1:][steps["grew"].iloc[1:]].max()
    return pd.DataFrame(rows)


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """JD-A-013 and -014, RS-A-003: claim_id, obtained, how, note."""
    training = frame[frame["part"] == TRAINING]
    told = stops(training).set_index("index")
    same = bool(training["same_as_given_size"].all())
    grown = told.loc[[PIECES, SPREAD]]
    steady = bool((grown["longest_when_it_grew_ms"] <= LONG * grown["median_ms"]).all())
    growths = ", ".join(f"{index}: {int(n)} growths" for index, n in grown["grew"].items())
    longest = f"longest step that grew {(grown['longest_when_it_grew_ms'] / grown['median_ms']).max():.2f} medians"
    found = {
        "JD-A-013": (same, f"losses, weights and states equal to the bit; {growths}"),
        "JD-A-014": (bool(training["first_values_fixed"].all()), "forwards and backwards through the same batches"),
        "RS-A-003": (same and steady and bool((grown["grew"] > 0).all()), f"{growths}; {longest}"),
    }
    return [answer(i, value, "measured", note) for i, (value, note) in found.items()]


LOOKS = {
    name: plotting.series_style(number) | {"marker": "", "linewidth": 1.1}
    for name, number in ((PIECES, 0), (SPREAD, 1), ("records", 2), (GIVEN, 6))
}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bytes over steps; step times of the training; times of calls into the index alone, where it gets large."""
    least = frame.groupby(["part", "index", "step"], sort=False)[["step_ms", "rows"]].min().reset_index()
    training, alone = least[least["part"] == TRAINING], least[least["part"] == ALONE]
    with plotting.style():
        figure = plotting.new_figure(10, 3.8)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        sizes, steps, calls = figure.subplots(1, 3)
        _draw_sizes(sizes, frame[(frame["part"] == TRAINING) & (frame["repetition"] == 0)])
        _draw_times(steps, training, training["step"])
        steps.set(title="training from empty", xlabel="training step", ylabel="step (ms), least of the repetitions")
        steps.set_ylim(0, 1.6 * training["step_ms"].iloc[1:].max())
        _draw_times(calls, alone, alone["rows"] / 1e6)
        calls.set(title="the index alone (SYNTHETIC ids)", xlabel="ids in the index (millions)")
        calls.set(yscale="log", ylabel="call of 8,192 new ids (ms), least")
        calls.set_ylim(0.5 * alone["step_ms"].min(), 8 * alone["step_ms"].max())
    return figure


def _draw_sizes(axes: Axes, frame: pd.DataFrame) -> None:
    for index in (PIECES, SPREAD):
        lines = frame[frame["index"] == index]
        axes.plot(lines["step"], lines["index_bytes"] / 1e6, label=f"index, {index}", **LOOKS[index])
    axes.plot(lines["step"], lines["record_bytes"] / 1e6, label="records", **LOOKS["records"])
    axes.set(title="memory of the tables", xlabel="training step", ylabel="MB")
    axes.set_ylim(0, 1.5 * frame.loc[frame["index"] != GIVEN, ["index_bytes", "record_bytes"]].to_numpy().max() / 1e6)
    axes.legend(loc="upper left")


def _draw_times(axes: Axes, frame: pd.DataFrame, across: pd.Series) -> None:
    """The first step is left out: it compiles and allocates."""
    for index, lines in frame.groupby("index", sort=False):
        axes.plot(across[lines.index[1:]], lines["step_ms"].iloc[1:], label=index, **LOOKS[index])
    axes.legend(loc="upper left")
