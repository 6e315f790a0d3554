"""Where the bytes of a row are, tier by tier: on the device, in host memory, on disk, at the peak of a training.

Without an accelerator the device tier is plain memory too: the bytes are those that a device would hold.
"""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding import Tiers
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, largest_batch, open_stream, slots_on
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import place_of_tier
from nestlab.experiments.two_tier.training import Model, train
from nestlab.tracing import Recorder
from nestlab.tracing.memory import DEVICE

CACHE_SHARE = 0.1  # slots over rows in use
HOST_SHARE = 0.25  # of the records' bytes, where a disk tier lies below
DEPTH = 2
_MOST_STEPS = 100
PLACES = {"host_bytes": "host: index and records", "device_bytes": "device tier: slots or buffers, their maps"}


def measure(settings: Settings) -> pd.DataFrame:
    """A row a set-up of tiers, two batches in flight.

    Columns: tier, rows (in the table), device_bytes (peak of slots or buffers, and their maps), host_bytes (index and
    records in memory), each also a row of the table (`…_a_row`); disk_bytes (the file, which grows by steps of 64 MiB);
    device_tier_in (what memory that is);
    device_peak_bytes (all that a device holds or would have to: with batches, activations, exchange, dense part);
    how_obtained.
    """
    stream = open_stream(replace(settings, steps=min(settings.steps, _MOST_STEPS)))
    with TemporaryDirectory(prefix="nestlab-disk-") as folder:
        kinds = _kinds(settings, stream, folder)
        return pd.DataFrame([_one(settings, stream, tier, tiers) for tier, tiers in kinds.items()])


def _kinds(settings: Settings, stream: Stream, folder: str) -> dict[str, Tiers]:
    record_bytes = 4 * Model().store(stream.features).groups[0].record_width
    # A share of the rows, and no fewer than the batches in flight use; one more is being written back.
    rows = max(int(HOST_SHARE * sum(map(len, distinct_ids(stream.train)))), (DEPTH + 1) * largest_batch(stream))
    disk = {"host_capacity": rows * record_bytes, "disk": folder}
    slots = slots_on(settings.device, CACHE_SHARE, stream)
    cache = Tiers(device_tier="slot_cache", cache_slots=slots, device=settings.device)
    return {
        "direct": Tiers(device=settings.device),
        "dual buffer": Tiers(device_tier="dual_buffer", device=settings.device),
        f"slot cache {CACHE_SHARE:.0%}": cache,
        f"slot cache {CACHE_SHARE:.0%}, host {HOST_SHARE:.0%}, disk": replace(cache, **disk),
    }


def _one(settings: Settings, stream: Stream, tier: str, tiers: Tiers) -> dict[str, Any]:
    model = Model(seed=settings.seed, tiers=tiers, depth=DEPTH, device=settings.device)
    pipeline = model.build(stream, Recorder(first_batch=0, batches=len(stream.train)))
    store = train(pipeline, stream.train).store
    account = pipeline.memory(pipeline.trace({"dataset": stream.title})).set_index("kind")["peak_bytes"]
    rows = sum(len(host.index) for host in store.hosts)
    row = {"device_bytes": int(account["buffers"]), "host_bytes": sum(store.nbytes().values())}
    a_row = {f"{place}_a_row": row[place] / rows for place in PLACES}
    row |= {"disk_bytes": store.disk_bytes, "device_peak_bytes": int(account[DEVICE])}
    where = place_of_tier(settings.device)
    return {"tier": tier, "rows": rows, **row, **a_row, "device_tier_in": where, "how_obtained": "measured"}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bytes a row of the table by place: device and host. What lies on disk is in the table of figures."""
    with plotting.style():
        figure = plotting.new_figure(8, 3.6)
        title += f"\ndevice tier in {frame['device_tier_in'].iloc[0]}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        axes = figure.add_subplot()
        at = np.arange(len(frame))
        for number, place in enumerate(PLACES):
            bars = axes.bar(
                at + 0.36 * (number - 0.5),
                frame[f"{place}_a_row"],
                0.34,
                label=PLACES[place],
                **plotting.bar_style(number),
            )
            axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
        axes.set_xticks(at, [tier.replace(", ", ",\n") for tier in frame["tier"]])
        axes.set(ylabel="bytes a row of the table")
        axes.set_ylim(0, 1.3 * frame[["host_bytes_a_row", "device_bytes_a_row"]].to_numpy().max())
        axes.legend(loc="upper right", ncols=2)
    return figure
