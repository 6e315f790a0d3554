"""Host memory that holds a part of the table, a disk tier below it: traffic, rows found in memory, and step time.

JD's article plans SSD as a third tier and gives no figure. Predicted before the first run: hot rows stay, so that with
half of the table in memory nine rows of ten are found there; the data of a laptop's run lie in the page cache, so that
a record costs a system call, and a step with a tenth of the table in memory takes up to twice as long.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding import EmbeddingStore, Tiers
from nestlab.embedding.host.pool import BufferPool, HostTooSmall
from nestlab.experiments.two_tier.one_pass import Stream, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, Trained, equal, train

SHARES = (0.05, 0.10, 0.25, 0.50, 1.00)
_COUNTS = ("promoted", "demoted", "dropped", "bytes_read", "bytes_written")


def measure(settings: Settings) -> pd.DataFrame:
    """A row a capacity and repetition; the capacity 100 % has room for all rows, and `all in memory` has no disk tier.

    Counts are of the second half of the steps, when hot rows are where they belong; new rows go on appearing.

    Columns: repetition, capacity (a share of the records' bytes at the end; NaN without a disk tier), host_bytes, fits
    (False: the rows of one batch do not fit; nothing else is there then), read_a_step and written_a_step (records),
    dropped_a_step (let go unchanged), kb_read_a_step, kb_written_a_step, found_in_memory (share of the rows that were
    there already, of those a step asks for and that are not new), step_ms (median), step_ms_of_memory (the same of this
    repetition's training without a disk tier), same_as_memory (losses, weights and states, to the bit), disk_bytes;
    how_obtained. The file lies in the page cache as far as the system has room: `nestlab bench disk` drops it.
    """
    stream = open_stream(settings)
    rows = []
    for repetition in rounds(settings):
        model = Model(seed=settings.seed, tiers=Tiers(device=settings.device), device=settings.device)
        memory = train(model.build(stream), stream.train)
        host_bytes = memory.store.nbytes()["records"]
        whole = float(np.median(_late(memory.step_ms)))
        about = {"repetition": repetition, "step_ms_of_memory": whole, "how_obtained": "measured"}
        rows.append({**about, "capacity": np.nan, "host_bytes": host_bytes, "step_ms": whole, **_NONE})
        for share in SHARES:
            rows.append({**about, "capacity": share, **_with_disk(settings, stream, int(share * host_bytes), memory)})
    return pd.DataFrame(rows)


_NONE = {"fits": True, "same_as_memory": True, "found_in_memory": 1.0, "kb_read_a_step": 0.0, "kb_written_a_step": 0.0}


def _with_disk(settings: Settings, stream: Stream, host_bytes: int, memory: Trained) -> dict[str, Any]:
    with TemporaryDirectory(prefix="nestlab-disk-") as folder:
        tiers = Tiers(host_capacity=host_bytes, disk=folder, device=settings.device)
        pipeline = Model(seed=settings.seed, tiers=tiers, device=settings.device).build(stream)
        course: list[dict[str, int]] = []
        try:
            trained = train(pipeline, stream.train, lambda store: course.append(_counts(store)))
        except HostTooSmall:
            return {"host_bytes": host_bytes, "fits": False}
        return {
            "host_bytes": host_bytes,
            "fits": True,
            **_a_step(course),
            "step_ms": float(np.median(_late(trained.step_ms))),
            "same_as_memory": equal(trained, memory, stream),
            "disk_bytes": trained.store.disk_bytes,
        }


def _counts(store: EmbeddingStore) -> dict[str, int]:
    """Sums so far: what the pools moved, and how many rows that were not new were asked for."""
    pools = [host.memory for host in store.hosts]
    assert all(isinstance(pool, BufferPool) for pool in pools)
    return {name: sum(getattr(pool, name) for pool in pools) for name in _COUNTS} | {"asked": store.counters.known}


def _a_step(course: list[dict[str, int]]) -> dict[str, float]:
    """Means a step over the second half."""
    half = len(course) // 2
    first = course[half - 1] if half else dict.fromkeys(course[-1], 0)
    mean = {name: (course[-1][name] - first[name]) / (len(course) - half) for name in course[-1]}
    return {
        "read_a_step": mean["promoted"],
        "written_a_step": mean["demoted"],
        "dropped_a_step": mean["dropped"],
        "kb_read_a_step": mean["bytes_read"] / 1e3,
        "kb_written_a_step": mean["bytes_written"] / 1e3,
        "found_in_memory": 1 - mean["promoted"] / mean["asked"] if mean["asked"] else np.nan,
    }


def _late(values: np.ndarray) -> np.ndarray:
    return values[len(values) // 2 :]


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """None: the article names the third tier and gives no figure; equality over all tiers is `35_jd`'s."""
    return []


DIRECTIONS = {"kb_read_a_step": "read up", "kb_written_a_step": "written down"}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Traffic a step, rows found in memory, and the step time over that of a table all in memory, by capacity."""
    disk = frame[frame["capacity"].notna() & frame["fits"]]
    means = disk.groupby("capacity").mean(numeric_only=True)
    ratio = disk.assign(ratio=disk["step_ms"] / disk["step_ms_of_memory"]).groupby("capacity")["ratio"]
    at = 100 * means.index.to_numpy()
    with plotting.style():
        figure = plotting.new_figure(10, 3.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        traffic, found, step = figure.subplots(1, 3)
        for number, (column, label) in enumerate(
            (("kb_read_a_step", "read up"), ("kb_written_a_step", "written down"))
        ):
            traffic.plot(at, means[column], label=label, **plotting.series_style(number))
        traffic.legend(loc="upper right")
        traffic.set(ylabel="disk traffic (kB a step)", ylim=(0, None))
        found.plot(at, 100 * means["found_in_memory"], **plotting.series_style(0))
        found.set(ylabel="rows found in memory (%)", ylim=(0, 103))
        median = ratio.median()
        spread = np.stack([median - ratio.min(), ratio.max() - median])
        step.errorbar(at, median, spread, capsize=3, **plotting.series_style(0))
        step.axhline(1, color=plotting.INK, linewidth=0.8)
        step.set(ylabel="step time over all in memory", ylim=(0, None))
        step.set_title("median; bars: least and most of the repetitions", fontsize=8)
        for axes in (traffic, found, step):
            _across(axes, frame)
    return figure


def _across(axes: Axes, frame: pd.DataFrame) -> None:
    """The capacities, those that were refused in grey."""
    axes.set(xscale="log", xlabel="host capacity (% of the table's records)")
    axes.set_xticks([100 * share for share in SHARES], [f"{100 * share:g}" for share in SHARES])
    axes.minorticks_off()
    refused = frame.loc[~frame["fits"], "capacity"]
    if len(refused):
        axes.axvspan(100 * min(SHARES) / 1.2, 110 * refused.max(), color=plotting.IDLE, zorder=0)
    axes.set_xlim(100 * min(SHARES) / 1.2, 120)
