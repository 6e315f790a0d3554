"""The largest table in equal memory: rows as they are, rows in tiers down to disk, tensor trains of several ranks.

Computed from the bytes of a row; and at a small capacity each table is built, filled and looked up, and its bytes
counted. A table that fits says nothing of what it learns: rows of a tensor train share their weights.

Predicted before the first run: a disk eight times as large as memory holds eight times the rows, less what the index
takes; rank 32 holds some hundred times the rows of a table as it is, and each halving of the rank eight times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding import EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers, optimizer
from nestlab.embedding.tensor_train import TensorTrain, TTTable
from nestlab.embedding.tensor_train.shape import suggest
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.tables import Said, chosen

OPTIMIZER = "adagrad"  # a sum beside each weight
LARGE = 1 << 30  # bytes: a capacity that is computed alone
MOST = 1 << 60  # rows that are counted
ARRAY, INDEXED, TIERS = "an array of rows", "rows as ids come (index)", "tiers: memory and disk"
_IDS = 1024  # of the look-up whose peak is counted
_FRAMES = 16  # of what tiers have in memory, one part in so many holds records at least
_PLACE, _FRAME = 4, 21  # bytes in memory: where a row's record is; what is known of a frame
_DIGEST = {
    "table": "table",
    "capacity": "memory, MB",
    "disk": "disk, MB",
    "rows": "rows that fit",
    "over_array": "over an array of rows, ×",
    "weights_a_row": "weights of its own, a row",
    "built_rows": "rows built",
    "built_bytes": "bytes counted, MB",
    "peak_bytes": "peak with a look-up, MB",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a kind of table and capacity.

    Columns: table, capacity, disk (bytes), dim, rows (that fit), over_array (times as many as an array has),
    weights_a_row (weights and states that are the row's own, on average), built_rows, built_bytes (in memory), used
    (built_bytes over the capacity), peak_bytes (with what a look-up of 1,024 ids, its gradient and its update hold; of
    what is computed alone, the capacity), how: `computed` (rows) and, where the table was built, `measured` (bytes).
    """
    with TemporaryDirectory(prefix="nestlab-disk-") as folder:
        rows = [*_small(settings, folder), *_large(settings)]
    frame = pd.DataFrame(rows).assign(dim=settings.dim)
    arrays = frame[frame["table"] == ARRAY].set_index("capacity")["rows"]
    return frame.assign(over_array=frame["rows"] / frame["capacity"].map(arrays))


def _small(settings: Settings, folder: str) -> Iterator[dict[str, Any]]:
    for name, rows, build in _kinds(settings, settings.capacity, settings.disk, folder):
        built, peak, own = build(rows)
        row = _row(name, settings.capacity, settings.disk, rows, own / rows)
        row |= {"built_rows": rows, "built_bytes": built, "used": built / settings.capacity, "peak_bytes": peak}
        yield row | {"how": "computed, measured"}


def _large(settings: Settings) -> Iterator[dict[str, Any]]:
    disk = LARGE // settings.capacity * settings.disk
    for name, rows, _ in _kinds(settings, LARGE, disk, ""):
        own = float(_record(settings) // 4)
        if name.startswith("TT"):
            rank = int(name.split()[-1])
            own = 2 * suggest(rows, settings.dim, rank=rank).parameters / rows
        yield {**_row(name, LARGE, disk, rows, own), "peak_bytes": LARGE, "how": "computed"}


def _row(name: str, capacity: int, disk: int, rows: int, own: float) -> dict[str, Any]:
    below = disk if name == TIERS else 0
    return {"table": name, "capacity": capacity, "disk": below, "rows": rows, "weights_a_row": own}


Build = Callable[[int], tuple[int, int, float]]  # rows → bytes, peak bytes, weights and states


def _kinds(settings: Settings, capacity: int, disk: int, folder: str) -> Iterator[tuple[str, int, Build]]:
    """Name, the rows that fit, and what builds it."""
    record, dim = _record(settings), settings.dim
    yield ARRAY, capacity // record, lambda rows: _array(rows, settings)
    yield INDEXED, _most(lambda n: _index(n) + n * record, capacity), lambda rows: _store(rows, settings, Tiers())
    least = capacity // _FRAMES // (record + _FRAME)
    in_memory = _most(lambda n: _index(n) + n * _PLACE + min(n, least) * (record + _FRAME), capacity)
    rows_in_tiers = min(in_memory, disk // record)
    frames = (capacity - _index(rows_in_tiers) - rows_in_tiers * _PLACE) // (record + _FRAME)
    tiers = lambda: Tiers(host_rows=frames, disk=folder)  # noqa: E731  the folder is there only when it is built
    yield TIERS, rows_in_tiers, lambda rows: _store(rows, settings, tiers(), frames)
    for rank in settings.ranks:
        fits = _most(lambda n, r=rank: 12 * suggest(n, dim, rank=r).parameters, capacity)
        yield f"TT of rank {rank}", fits, lambda rows, r=rank: _tensor_train(rows, settings, r)


def _record(settings: Settings) -> int:
    """Bytes of a row with its state."""
    return 4 * (settings.dim + optimizer(OPTIMIZER, lr=0.1).state_width(settings.dim))


def _index(rows: int) -> int:
    """Bytes of a key index of so many rows: 16 an entry, 64 entries or more, at most half full."""
    return 16 << max(6, (2 * rows - 1).bit_length()) if rows else 0


def _most(size: Callable[[int], int], capacity: int) -> int:
    """The largest number whose size is at most `capacity`, but not above MOST; size must not fall."""
    low, high = 0, 1
    while high < MOST and size(high) <= capacity:
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= capacity else (low, middle)
    return low


def _array(rows: int, settings: Settings) -> tuple[int, int, float]:
    records = torch.zeros(rows, _record(settings) // 4)
    return records.nbytes, records.nbytes + 2 * 4 * min(_IDS, rows) * settings.dim, records.numel()


def _store(rows: int, settings: Settings, tiers: Tiers, frames: int = 0) -> tuple[int, int, float]:
    """A store filled through its own calls, in batches, and one more batch looked up and learnt."""
    table = TableConfig("large", settings.dim, initial_rows=1)
    store = EmbeddingStore([table], optimizer(OPTIMIZER, lr=0.1), seed=settings.seed, tiers=tiers)
    size = min(_IDS, rows, frames or rows)
    for first in range(0, rows, size):
        _learn(store, np.arange(first, min(first + size, rows)))
    _learn(store, np.arange(size))
    beside = rows * _PLACE + frames * _FRAME if frames else 0
    counted = sum(store.nbytes().values()) + beside
    return counted, counted + 2 * 4 * size * settings.dim, rows * _record(settings) / 4


def _learn(store: EmbeddingStore, ids: np.ndarray) -> None:
    residency = store.prepare([KeySet(ids, np.array([0, ids.size]))])
    store.commit(residency)
    weights = store.gather(residency, 0)
    store.apply(residency, [torch.ones_like(weights)], StepInfo(store.counters.batches))
    store.writeback(residency)
    store.release(residency)


def _tensor_train(rows: int, settings: Settings, rank: int) -> tuple[int, int, float]:
    train = TensorTrain(rows=rows, rank=rank)
    table = TTTable(TableConfig("large", settings.dim, tensor_train=train), optimizer(OPTIMIZER, lr=0.1))
    ids = torch.from_numpy(np.random.default_rng(settings.seed).integers(0, 1 << 62, _IDS))
    out = table.embed(ids, torch.ones(_IDS, dtype=torch.int64))
    out.backward(torch.ones_like(out))
    table.apply(StepInfo(1))
    own = sum(records.numel() for records in table.cores.records)
    return table.nbytes, table.nbytes + 2 * out.nbytes + table.work.peak, own


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bars of rows over kinds of table, a group a capacity."""
    capacities = sorted(set(frame["capacity"]))
    names = list(dict.fromkeys(frame["table"]))
    with plotting.style():
        figure = plotting.new_figure(9.0, 0.5 * len(names) + 1.6)
        axes = figure.add_subplot()
        height = 0.8 / len(capacities)
        for number, capacity in enumerate(capacities):
            rows = frame[frame["capacity"] == capacity].set_index("table").loc[names]
            at = np.arange(len(names)) + height * (number - (len(capacities) - 1) / 2)
            how = "built, bytes counted" if rows["how"].str.contains("measured").all() else "computed"
            label = f"{capacity / 2**20:,.0f} MiB of memory ({how})"
            bars = axes.barh(at, rows["rows"], height * 0.9, label=label, **plotting.bar_style(number))
            axes.bar_label(bars, [f"{n:,.0f}" if n < 1e9 else f"{n:.1e}" for n in rows["rows"]], padding=4, fontsize=7)
        disk = frame.loc[frame["table"] == TIERS, "disk"] / frame.loc[frame["table"] == TIERS, "capacity"]
        names[names.index(TIERS)] = f"{TIERS},\n{disk.iloc[0]:.0f} × the memory"
        axes.set_yticks(range(len(names)), names)
        axes.set(xscale="log", ylim=(len(names) - 0.5, -0.5), xlim=(frame["rows"].min() / 2, frame["rows"].max() * 40))
        axes.set_xlabel(f"rows of {frame['dim'].iloc[0]} weights, with Adagrad's state")
        axes.grid(False, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        axes.set_title(title)
    return figure


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    small = frame[frame["capacity"] == frame["capacity"].min()]
    by, trains = small.set_index("table"), small[small["table"].str.startswith("TT")]
    least, most, first = trains["over_array"].min(), trains["over_array"].max(), trains.iloc[0]
    return Said(
        f"In {by['capacity'].iloc[0] / 2**20:.0f} MiB an array has {by.loc[ARRAY, 'rows']:,} rows, tiers with "
        f"{by.loc[TIERS, 'disk'] / 2**20:.0f} MiB of disk {by.loc[TIERS, 'over_array']:.2f} times as many, tensor "
        f"trains {least:.3g} to {most:.3g} times. The tables that were built took {small['used'].min():.1%} to "
        f"{small['used'].max():.1%} of the memory that was computed for them. How well they learn is another matter: "
        f"a row of a {first['table']} has {first['weights_a_row']:.2g} weights of its own."
    )
