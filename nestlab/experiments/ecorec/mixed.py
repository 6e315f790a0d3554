"""Ever more of a model's tables as tensor trains: look-up time against bytes (figure 3 of the source).

Predicted before the first run: a row of a tensor train costs a few thousand multiplications and a row of a table as it
is one read, so that the time rises in a straight line with the number of tensor trains, as the bytes fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import embedding_bag

from nestlab import plotting
from nestlab.embedding.tensor_train.schemes import EcoRec
from nestlab.embedding.tensor_train.shape import suggest
from nestlab.embedding.tensor_train.work import Work
from nestlab.experiments.ecorec.kernels_timed import Task, computing
from nestlab.experiments.ecorec.redundancy import prefix_shares
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, SKEW, drawn
from nestlab.experiments.tables import Said, answer, chosen

_DIM, _IDS = 32, 4096  # of each table
_STEPS = 5
_DIGEST = {
    "trains": "tensor trains",
    "tables": "of tables",
    "look_up_ms": "look-up of all, ms",
    "look_up_ms_low": "least",
    "look_up_ms_high": "most",
    "table_bytes": "tables, MB",
    "compression": "compression, ×",
    "peak_bytes": "peak of tables and look-up, MB",
    "unique": "n_u / ids, %",
    "prefixes": "n_p / ids, %",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a number of tensor trains: trains, tables, look_up_ms (median, forward, sorting included, of 4,096 ids a
    table), look_up_ms_low, look_up_ms_high, rounds, table_bytes, compression (bytes of all tables as they are, over
    these), peak_bytes (tables, pooled rows, and what a look-up holds), unique, prefixes, how."""
    shape = suggest(settings.mixed_rows, _DIM, rank=settings.rank)
    rows = drawn(HASHED, _IDS, settings.mixed_rows, settings.seed)
    prefixes, unique = prefix_shares(rows, shape)
    task = Task.of(shape, rows, settings.seed)
    dense = torch.zeros(settings.mixed_rows, _DIM)
    tables = [(dense.clone() if n else dense, task) for n in range(settings.mixed)]
    counts = np.unique(np.linspace(0, settings.mixed, _STEPS + 1).round().astype(int)).tolist()
    with computing(settings.threads):
        took = _in_turns([lambda k=k: _look_up(tables, k) for k in counts], settings.repeats)
    cores = sum(core.nbytes for core in task.cores)
    found = []
    for trains, times in zip(counts, took, strict=True):
        size = trains * cores + (settings.mixed - trains) * dense.nbytes
        row = {"trains": trains, "tables": settings.mixed, "look_up_ms": float(np.median(times))}
        row |= {"look_up_ms_low": min(times), "look_up_ms_high": max(times), "rounds": len(times), "table_bytes": size}
        row |= {"compression": settings.mixed * dense.nbytes / size}
        row |= {"peak_bytes": size + settings.mixed * 4 * _IDS * _DIM + (_held(task) if trains else 0)}
        found.append(row | {"unique": unique, "prefixes": prefixes, "how": "measured"})
    return pd.DataFrame(found)


def _held(task: Task) -> int:
    """Bytes of intermediates of one look-up."""
    scheme, work = EcoRec(), Work()
    scheme.forward(task.shape, task.cores, scheme.prepare(task.shape, task.bags), work)
    return work.peak


def _look_up(tables: list[tuple[Tensor, Task]], trains: int) -> None:
    """All tables once, the first `trains` as tensor trains."""
    scheme = EcoRec()
    for number, (dense, task) in enumerate(tables):
        if number < trains:
            scheme.forward(task.shape, task.cores, scheme.prepare(task.shape, task.bags), Work())
        else:
            embedding_bag(task.bags.rows, dense, task.bags.offsets[:-1], mode="sum")


def _in_turns(runs: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Milliseconds of each, `rounds` times in turn, after a first time that does not count."""
    took: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for place in range(len(runs)):
            at = (place + number) % len(runs)
            started = time.perf_counter()
            runs[at]()
            took[at].append(1e3 * (time.perf_counter() - started))
    return [times[1:] for times in took]


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Time and bytes over the number of tensor trains."""
    with plotting.style():
        figure = plotting.new_figure(8.0, 3.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        took, size = figure.subplots(1, 2)
        spread = (frame["look_up_ms"] - frame["look_up_ms_low"], frame["look_up_ms_high"] - frame["look_up_ms"])
        took.errorbar(frame["trains"], frame["look_up_ms"], spread, capsize=3, **plotting.series_style(0))
        took.set(ylabel="look-up of all tables, ms", ylim=(0, None))
        size.plot(frame["trains"], frame["table_bytes"] / 1e6, **plotting.series_style(1))
        size.set(ylabel="all tables, MB", ylim=(0, None))
        for axes in (took, size):
            axes.set_xlabel(f"tensor trains, of {frame['tables'].iloc[0]} tables")
            axes.set_xticks(frame["trains"])
    return figure


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    first, last = frame.iloc[0], frame.iloc[-1]
    each = (last["look_up_ms"] - first["look_up_ms"]) / last["tables"]
    return Said(
        f"From no tensor train to {last['trains']} of {last['tables']} tables: {first['look_up_ms']:.3g} to "
        f"{last['look_up_ms']:.3g} ms, {each:.3g} ms a table of {_IDS:,} hashed ids (SYNTHETIC, skew {SKEW}); "
        f"bytes fall {last['compression']:.0f}-fold."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    note = (
        f"look-up of {frame['tables'].iloc[0]} tables, {', '.join(map(str, frame['trains']))} of them tensor trains; ms"
    )
    return [answer("ER-P-029", frame["look_up_ms"].tolist(), "measured", note)]
