"""Smaller micro-batches: what stays exposed of the exchange, against 1/N, and what it sends, clustered or not.

Predicted before the first run: without clustering keys come again in micro-batch after micro-batch, so that more is
sent the smaller they are; with it, hardly. Exposed time follows 1/N until an exchange lasts longer than the computation
beside it, or the overhead of many small pieces shows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments import claims as register
from nestlab.experiments.nestpipe.links import EMULATED
from nestlab.experiments.tables import Said, answer, chosen

_LAW, _LAW_UP_TO = "NP-P-025", 16  # the claim, and the largest N that it speaks of
_NAMES = {"none": "samples in time order", "greedy": "clustered (greedy)"}
_DIGEST = {
    "parts": "N",
    "samples": "samples",
    "clustering": "clustering",
    "step_ms": "step, ms",
    "exchange_ms": "exchange, ms",
    "exposed_rows_ms": "exchange exposed, ms",
    "exposed_share": "exposed of the exchange at N = 1, %",
    "law": "by the law 1/N, %",
    "bytes": "sent a rank and step, MB",
    "over_bound": "rows received, × unique keys",
    "utilisation": "utilisation, %",
    "peak_device_bytes": "peak on the device, MB",
}


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """With exchange_ms (all row and gradient exchanges of a step), exposed_share (of the exchange of one full batch),
    law (1/N), bytes (a step and rank), over_bound (rows received over unique keys of the batch)."""
    found = frame.copy()
    found["exchange_ms"] = found["emb_exchange_ms"] + found["grad_exchange_ms"]
    whole = found[found["parts"] == 1].iloc[0] if (found["parts"] == 1).any() else found.iloc[0]
    found["exposed_share"] = found["exposed_rows_ms"] / whole["exchange_ms"]
    found["law"] = 1 / found["parts"]
    found["bytes"] = found["sent_rows_bytes"] + found["sent_grads_bytes"]
    found["over_bound"] = found["received_rows"] / found["unique_keys"]
    return found


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left: rows received over the least; middle: exposed exchange against the law; right: the step."""
    found = derived(frame)
    with plotting.style():
        figure = plotting.new_figure(12.0, 3.7)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        sent, exposed, step = figure.subplots(1, 3)
        for number, (clustering, name) in enumerate(_NAMES.items()):
            lines = found[(found["clustering"] == clustering) | (found["parts"] == 1)]
            for axes, column in ((sent, "over_bound"), (exposed, "exposed_share"), (step, "step_ms")):
                axes.plot(lines["parts"], lines[column], label=name, **plotting.series_style(number))
        law = found.drop_duplicates("parts")
        exposed.plot(law["parts"], law["law"], color=plotting.INK, linewidth=1, linestyle="--", label="the law, 1/N")
        sent.axhline(1, color=plotting.INK, linewidth=0.8)
        sent.set(ylabel="rows received, × unique keys")
        exposed.set(ylabel="exchange that computation waits for\n(100 %: all of it, unsplit; log scale)", yscale="log")
        ticks = _halvings(found)
        exposed.set_yticks(ticks, [f"{100 * tick:.3g} %" for tick in ticks])
        exposed.set_ylim(ticks[0] / 1.1, ticks[-1] * 1.1)  # a mark on an edge would be cut
        exposed.minorticks_off()
        step.set(ylabel="ms a step", ylim=(0, 1.08 * found["step_ms"].max()))  # room for the mark of the slowest
        for axes in (sent, exposed, step):
            _axis(axes, found)
        exposed.legend()
    return figure


def _halvings(found: pd.DataFrame) -> list[float]:
    """Powers of two from below the least exposed share to above the most, the law's included."""
    values = np.log2([*found["exposed_share"].clip(lower=1e-3), *found["law"]])
    return [2.0**n for n in range(int(np.floor(values.min())), int(np.ceil(values.max())) + 1)]


def _axis(axes: Axes, found: pd.DataFrame) -> None:
    parts = sorted(found["parts"].unique())
    axes.set(xscale="log", xlabel="micro-batches N")
    axes.set_xticks(parts, [f"{n}" for n in parts])
    axes.minorticks_off()


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    found = derived(frame)
    return chosen(found, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    found = derived(frame).set_index(["parts", "clustering"])
    most = found.index.get_level_values("parts").max()
    if most == 1 or (most, "greedy") not in found.index:
        return Said("One micro-batch alone was tried.")
    loose, tight = found.loc[(most, "none")], found.loc[(most, "greedy")]
    text = (
        f"At N = {most} ({loose['samples']:.0f} samples) time order receives {loose['over_bound']:.2f} times the "
        f"unique keys of a batch, clustered samples {tight['over_bound']:.2f} times. "
    )
    if loose["bytes"] > 0:
        text += (
            f"Exposed exchange times N, 1 by the law: clustered {_times_n(found, 'greedy')}; in time order "
            f"{_times_n(found, 'none')}. More than 1 means that an exchange is longer than the computation beside it: "
            "by rows that come again, by the overhead of many small pieces, or by others on this machine. "
        )
    else:
        text += "With one rank no row travels, so that there is no law to be seen. "
    best, clustering = found["step_ms"].idxmin()
    return Said(text + f"The shortest step was that of N = {best}{' (clustered)' * (clustering != 'none')}.")


def _times_n(found: pd.DataFrame, clustering: str) -> str:
    """Exposed over all exchange at N = 1, times N, of every N above 1."""
    rows = found.xs(clustering, level="clustering")["exposed_share"]
    return ", ".join(f"{share * n:.2f} at N = {n}" for n, share in rows.items() if n > 1)


def answers(frame: pd.DataFrame) -> list[dict]:
    """The 1/N law itself, and what clustering does to it; nothing where no row travels."""
    found = derived(frame).set_index(["parts", "clustering"])
    most = found.index.get_level_values("parts").max()
    if most == 1 or not found["bytes"].max() > 0:
        return []
    whole, loose, tight = (found.loc[key] for key in ((1, "none"), (most, "none"), (most, "greedy")))
    inflated, clustered = (row["bytes"] / whole["bytes"] for row in (loose, tight))
    misses, keeps = (abs(row["exposed_share"] * most - 1) for row in (loose, tight))
    note = (
        f"N = {most}, {loose['samples']:.0f} samples: {{:.2f}} times the bytes of one full batch; exposed × N {{:.2f}}"
    )
    return [
        *_law(found),
        answer(
            "NP-P-057",
            bool(inflated > 1 and misses > 2 * _tolerance()),
            EMULATED,
            note.format(inflated, loose["exposed_share"] * most),
        ),
        answer(
            "NP-P-058",
            bool(clustered - 1 <= (inflated - 1) / 2 and keeps <= _tolerance()),
            EMULATED,
            note.format(clustered, tight["exposed_share"] * most) + f" (time order: {inflated:.2f} times the bytes)",
        ),
    ]


def _tolerance() -> float:
    """How far exposed × N may be from the law, as the register has it."""
    return register.claim(_LAW).tolerance.number


def _law(found: pd.DataFrame) -> list[dict]:
    """Exposed over all exchange time of the same training, times N, of the clustered N that is farthest from 1."""
    rows = found.xs("greedy", level="clustering")
    times = {n: n * row["exposed_rows_ms"] / row["exchange_ms"] for n, row in rows.iterrows() if 1 < n <= _LAW_UP_TO}
    if not times:
        return []
    worst = max(times, key=lambda n: abs(np.log(max(times[n], 1e-9))))
    note = "clustered; the worst of " + ", ".join(f"{value:.2f} at N = {n}" for n, value in times.items())
    return [answer(_LAW, float(times[worst]), EMULATED, note)]
