"""Host memory that holds a part of the table, a disk tier below it: traffic, rows found in memory, and step time.

JD's article plans SSD as a third tier and gives no figure. Predicted before the first run: hot rows stay, so that with
half of the table in memory nine rows of ten are found there; the data of a laptop's run lie in the page cache, so that
a record costs a system call, and a step with a tenth of the table in memory takes up to twice as long.
Found on KuaiRand-Pure (`quick`): 89 % of the rows with half of the table and 54 % with a tenth, and steps a tenth and
a fifth longer there, not twice as long: records that lie close together come up in one call.
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
from nestlab.embedding.host.pool import BufferPool
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, largest_batch, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, equal, train_together

SHARES = (0.05, 0.10, 0.25, 0.50, 1.00)
_COUNTS = ("promoted", "demoted", "dropped", "bytes_read", "bytes_written")


def measure(settings: Settings) -> pd.DataFrame:
    """A row a capacity and repetition; the capacity 100 % has room for all rows, and `all in memory` has no disk tier.

    Counts are of the second half of the steps, when hot rows are where they belong; new rows go on appearing.

    Columns: repetition, capacity (a share of the records' bytes at the end; NaN without a disk tier), host_bytes, fits
    (False: the rows of one batch do not fit, and the tier would refuse it; nothing else is there then), read_a_step and
    written_a_step (records), dropped_a_step (let go unchanged), kb_read_a_step, kb_written_a_step, found_in_memory
    (share of the rows that were there already, of those a step asks for and that are not new), step_ms (median),
    step_ratio (median over the steps: over the same step of the training without a disk tier), same_as_memory (losses,
    weights and states, to the bit), disk_bytes; how_obtained. The file lies in the page cache as far as the system has
    room: `nestlab bench disk` drops it.
    """
    stream = open_stream(settings)
    needed = largest_batch(stream)
    rows = []
    for repetition in rounds(settings):
        with TemporaryDirectory(prefix="nestlab-disk-") as folder:
            rows += [{"repetition": repetition, **row} for row in _round(settings, stream, needed, folder)]
    return pd.DataFrame(rows).assign(how_obtained="measured")


def _round(settings: Settings, stream: Stream, needed: int, folder: str) -> list[dict[str, Any]]:
    """All capacities, their steps in turn."""
    (group,) = Model().store(stream.features).groups
    record_bytes = 4 * group.record_width
    host_bytes = record_bytes * sum(map(len, distinct_ids(stream.train)))
    sizes = {share: int(share * host_bytes) for share in SHARES}
    fits = {share: size // record_bytes >= needed for share, size in sizes.items()}
    chosen = [None, *(share for share in SHARES if fits[share])]
    courses: list[list[dict[str, int]]] = [[] for _ in chosen]
    trained = train_together(
        [_model(settings, share and sizes[share], folder).build(stream) for share in chosen],
        stream.train,
        [lambda store, course=course: course.append(_counts(store)) for course in courses],
    )
    rows = [{"capacity": share, "host_bytes": sizes[share], "fits": False} for share in SHARES if not fits[share]]
    for share, course, each in zip(chosen, courses, trained, strict=True):
        rows.append({"capacity": share, "host_bytes": sizes.get(share, host_bytes), "fits": True, **_a_step(course)})
        late, memory = _late(each.step_ms), _late(trained[0].step_ms)
        rows[-1] |= {"step_ms": float(np.median(late)), "step_ratio": float(np.median(late / memory))}
        rows[-1] |= {"same_as_memory": equal(each, trained[0], stream), "disk_bytes": each.store.disk_bytes}
    return rows


def _model(settings: Settings, host_bytes: int | None, folder: str) -> Model:
    below = {} if host_bytes is None else {"host_capacity": host_bytes, "disk": folder}
    return Model(seed=settings.seed, tiers=Tiers(device=settings.device, **below), device=settings.device)


def _counts(store: EmbeddingStore) -> dict[str, int]:
    """Sums so far: what the pools moved, and how many rows that were not new were asked for."""
    pools = [host.memory for host in store.hosts if isinstance(host.memory, BufferPool)]
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


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a capacity, means over the repetitions."""
    shown = ["host_bytes", "kb_read_a_step", "kb_written_a_step", "found_in_memory", "step_ms", "step_ratio"]
    told = frame.groupby(["capacity", "fits"], sort=False, dropna=False)
    return told[shown].mean().reset_index().sort_values("capacity", ignore_index=True)


DIRECTIONS = {"kb_read_a_step": "read up", "kb_written_a_step": "written down"}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Traffic a step, rows found in memory, and the step time over that of a table all in memory, by capacity."""
    disk = frame[frame["capacity"].notna() & frame["fits"]]
    means = disk.groupby("capacity").mean(numeric_only=True)
    ratio = disk.groupby("capacity")["step_ratio"]
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
        traffic.set(ylabel="disk traffic (kB a step)")
        traffic.set_ylim(0, 1.4 * max(1.0, disk[list(DIRECTIONS)].max(axis=None) if len(disk) else 1.0))
        found.plot(at, 100 * means["found_in_memory"], **plotting.series_style(0))
        found.set(ylabel="rows found in memory (%)", ylim=(0, 103))
        median = ratio.median()
        spread = np.stack([median - ratio.min(), ratio.max() - median])
        step.errorbar(at, median, spread, capsize=3, **plotting.series_style(0))
        step.axhline(1, color=plotting.INK, linewidth=0.8)
        step.set(ylabel="step time over all in memory")
        step.set_ylim(0, 1.2 * max(1.0, disk["step_ratio"].max() if len(disk) else 1.0))
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
        place = {"transform": axes.get_xaxis_transform(), "rotation": 90, "fontsize": 7, "va": "bottom"}
        axes.text(105 * min(SHARES), 0.04, "refused: one batch does not fit", **place)
    axes.set_xlim(100 * min(SHARES) / 1.2, 120)
