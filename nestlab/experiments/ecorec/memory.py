"""Peak memory of one look-up and its gradient: over the number of slices, against a table as it is, and without slices.

Predicted before the first run: what lies between the products is divided by the number of slices, down to the buffers
of one batched product; of the embedding part's peak, in which cores and output do not change, four slices save about
half. A whole batch multiplied at once takes more memory than the table as it is, from some hundred thousand ids on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.embedding.tensor_train.ecorec_plan import plan_torch
from nestlab.embedding.tensor_train.schemes import EcoRec, ELRec, TTRec
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.shape import suggest
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.kernels_timed import Task, computing
from nestlab.experiments.ecorec.live import Live
from nestlab.experiments.ecorec.redundancy import prefix_shares
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, drawn
from nestlab.experiments.nestpipe.tables import Said, answer, chosen, share

ROWS, DIM, RANK = 100_000_000, 32, 32  # of table 1 of the source
SCALED = 100  # a table as it is would take gigabytes: one with so many times fewer rows is built
MEASURED, COMPUTED = "measured", "computed"
DENSE, WHOLE, CHUNKED = "table as it is", "TT-Rec, one product", "TT-Rec, in chunks"
EL_REC, KERNELS, TORCH = "EL-Rec, in chunks", "EcoRec, kernels", "EcoRec, batched products"
_BYTES = ("table_bytes", "grads_bytes", "plan_bytes", "rows_bytes", "intermediates_bytes")
_DIGEST = {
    "what": "what",
    "slices": "slices",
    "indices": "ids",
    "rows": "rows of the table",
    "peak_bytes": "peak of the embedding part, MB",
    "intermediates_bytes": "of it between products, MB",
    "table_bytes": "table, MB",
    "grads_bytes": "its gradient, MB",
    "plan_bytes": "plan, MB",
    "rows_bytes": "pooled rows and their gradient, MB",
    "total_ms": "time, ms",
    "total_ms_low": "least",
    "total_ms_high": "most",
    "unique": "n_u / ids, %",
    "prefixes": "n_p / ids, %",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a way to look up, and a number of slices.

    Columns: what, slices (NaN: not a matter of slices), indices, rows, dim, table_bytes (cores, or rows), grads_bytes
    (of the cores), plan_bytes (ids, their order), rows_bytes (what comes out, and its gradient), intermediates_bytes
    (all that is held between), peak_bytes (the sum), unique, prefixes, operations, total_ms (prepare, forward and
    backward; median of the rounds), total_ms_low, total_ms_high, how (`computed`: bytes an id, which another row
    measured, times the ids; or a table as it is, from its size).
    """
    with computing(settings.threads):
        rows = [*_sliced(settings), *_whole(settings), *_dense(settings)]
    frame = pd.DataFrame(rows)
    return frame.assign(peak_bytes=frame[list(_BYTES)].sum(axis=1), dim=DIM)


@dataclass(frozen=True, eq=False)
class BatchedProducts:
    """EcoRec by batched products on any device, as the source's code has it: what a slice holds is held whole."""

    inner: EcoRec
    name: str = "ecorec"

    def prepare(self, shape, bags):
        return plan_torch(shape, bags)

    def forward(self, shape, cores, plan, work):
        return self.inner.forward(shape, cores, plan, work)

    def backward(self, shape, cores, plan, grad, into, work):
        self.inner.backward(shape, cores, plan, grad, into, work)


def _sliced(settings: Settings) -> Iterator[dict[str, Any]]:
    """All schemes on one look-up in turns, and EcoRec in several numbers of slices."""
    task = _task(settings, settings.memory_indices)
    schemes: list[tuple[str, float, Scheme]] = [(CHUNKED, np.nan, TTRec()), (EL_REC, np.nan, ELRec())]
    schemes += [(KERNELS, n, EcoRec(n)) for n in settings.slices]
    schemes += [(TORCH, n, BatchedProducts(EcoRec(n))) for n in settings.slices]
    took: list[list[dict[str, float]]] = [[] for _ in schemes]
    for number in range(max(2, settings.repeats)):  # the first time does not count
        for place in range(len(schemes)):
            at = (place + number) % len(schemes)
            took[at].append(task.time(schemes[at][2]))
    for (what, slices, scheme), rounds in zip(schemes, took, strict=True):
        yield {"what": what, "slices": slices, **_account(task, scheme, rounds[1:]), "how": MEASURED}


def _account(task: Task, scheme: Scheme, rounds: list[dict[str, float]]) -> dict[str, Any]:
    times = [each["total_ms"] for each in rounds]
    rows, cores = task.bags.rows.numpy(), sum(core.nbytes for core in task.cores)
    prefixes, unique = prefix_shares(rows, task.shape)
    return {
        "indices": rows.size,
        "rows": ROWS,
        "table_bytes": cores,
        "grads_bytes": cores,
        "plan_bytes": scheme.prepare(task.shape, task.bags).nbytes,
        "rows_bytes": 2 * task.grad.nbytes,
        "intermediates_bytes": rounds[0]["peak_bytes"],
        "operations": rounds[0]["operations"],
        "unique": unique,
        "prefixes": prefixes,
        "total_ms": float(np.median(times)),
        "total_ms_low": min(times),
        "total_ms_high": max(times),
    }


def _task(settings: Settings, indices: int) -> Task:
    """In bags as large as those of table 1."""
    shape = suggest(ROWS, DIM, rank=RANK)
    return Task.of(shape, drawn(HASHED, indices, ROWS, settings.seed), settings.seed, _bag())


def _bag() -> int:
    """Ids a sample of table 1."""
    return round(register.claim("ER-P-051").value / int(register.claim("ER-P-052").labels[0].replace(",", "")))


def _whole(settings: Settings) -> Iterator[dict[str, Any]]:
    """All ids in one product, as FBTT has it: measured at a size that fits, and from that the sizes of table 1."""
    count = settings.whole_indices
    task, scheme = _task(settings, count), TTRec(chunk=count)
    found = {"what": WHOLE, **_account(task, scheme, [task.time(scheme) for _ in range(2)][1:]), "how": MEASURED}
    yield found
    for indices in (settings.memory_indices, *table_1()):
        scaled = {name: found[name] / count * indices for name in ("plan_bytes", "rows_bytes", "intermediates_bytes")}
        same = {name: found[name] for name in ("what", "rows", "table_bytes", "grads_bytes")}
        yield {**same, "indices": indices, **scaled, "how": COMPUTED}


def table_1() -> tuple[int, int]:
    """The ids of the two batches of table 1: the register states those of the first, the second is twice as large."""
    first = int(register.claim("ER-P-051").value)
    return first, 2 * first


def _dense(settings: Settings) -> Iterator[dict[str, Any]]:
    """A table as it is, with sparse gradients and SGD: a smaller one measured, and by its size the whole one."""
    count, rows = settings.memory_indices, ROWS // SCALED
    ids = torch.from_numpy(drawn(HASHED, count, rows, settings.seed))
    weight = torch.nn.Parameter(torch.zeros(rows, DIM))
    live, ms = _dense_step(weight, ids, _bag())
    out = 2 * 4 * -(-count // _bag()) * DIM
    found = {"what": DENSE, "indices": count, "rows": rows, "table_bytes": weight.nbytes, "grads_bytes": 0}
    found |= {"plan_bytes": ids.nbytes, "rows_bytes": out, "intermediates_bytes": live - out, "how": MEASURED}
    yield {**found, "total_ms": ms, "total_ms_low": ms, "total_ms_high": ms}
    yield {**found, "rows": ROWS, "table_bytes": SCALED * weight.nbytes, "how": COMPUTED}


def _dense_step(weight: torch.nn.Parameter, ids: torch.Tensor, bag: int) -> tuple[int, float]:
    """Bytes held at once beside table and ids, and milliseconds without counting them."""
    sgd, live = torch.optim.SGD([weight], lr=0.1), Live(weight, ids)

    def step() -> None:
        out = torch.nn.functional.embedding_bag(ids, weight, torch.arange(0, ids.numel(), bag), mode="sum", sparse=True)
        out.backward(torch.ones_like(out))
        sgd.step()
        sgd.zero_grad()

    step()
    with live:
        step()
    started = time.perf_counter()
    step()
    return live.peak, 1e3 * (time.perf_counter() - started)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bytes between products over the slices; the time over the slices; the peak of the embedding part."""
    with plotting.style():
        figure = plotting.new_figure(11.5, 4.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        held, took, peaks = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.5))
        _draw_slices(held, frame, "intermediates_bytes", 1e-6)
        held.set_ylabel("held between products, MB")
        held.set_yscale("log")
        _draw_slices(took, frame, "total_ms", 1)
        took.set_ylabel("prepare, forward and backward, ms")
        took.set_ylim(0)
        figure.legend(*_lines(held, took), loc="outside lower left", ncols=3)
        _draw_peaks(peaks, frame)
    return figure


def _draw_slices(axes: Axes, frame: pd.DataFrame, column: str, factor: float) -> None:
    at = frame["slices"].notna()
    for number, what in enumerate((TORCH, KERNELS)):
        line = frame[at & (frame["what"] == what)]
        spread = None
        if column == "total_ms":
            spread = (line["total_ms"] - line["total_ms_low"], line["total_ms_high"] - line["total_ms"])
        axes.errorbar(line["slices"], factor * line[column], spread, label=what, **plotting.series_style(number))
    most = int(frame.loc[at, "indices"].iloc[0])
    for number, what in enumerate((WHOLE, CHUNKED, EL_REC)):
        line = frame[(frame["what"] == what) & (frame["indices"] == most)]
        if line[column].notna().any():
            look = {"color": plotting.SERIES_COLOURS[number + 2], "linestyle": plotting.DASHES[number + 2]}
            axes.axhline(factor * line[column].iloc[0], label=_named(line), **look)
    slices = sorted(set(frame.loc[at, "slices"]))
    axes.set(xscale="log", xlabel=f"slices of a look-up of {most:,} ids")
    axes.set_xticks(slices, [f"{n:g}" for n in slices])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _named(line: pd.DataFrame) -> str:
    return line["what"].iloc[0] + (" (computed)" if line["how"].iloc[0] == COMPUTED else "")


def _lines(*panels: Axes) -> tuple[list, list]:
    named = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(named.values()), list(named)


def _draw_peaks(axes: Axes, frame: pd.DataFrame) -> None:
    """Bars of gibibytes, and the source's table 1 beside those of its size."""
    bars = _bars(frame)
    at = np.arange(len(bars))
    for number, how in enumerate((MEASURED, COMPUTED)):
        rows = (bars["how"] == how).to_numpy()
        axes.barh(at[rows], bars["gib"][rows], 0.66, label=how, **plotting.bar_style(number))
    known = bars["published"].notna()
    look = {"marker": "X", "markersize": 8, "markeredgecolor": plotting.PAPER, "linestyle": "none"}
    axes.plot(bars["published"][known], at[known], color=plotting.INK, label="published, table 1", **look)
    for y, row in enumerate(bars.itertuples()):
        axes.text(
            max(row.gib, row.published if row.published > 0 else 0) * 1.2, y, f"{row.gib:.3g}", va="center", fontsize=7
        )
    axes.set_yticks(at, bars["name"], fontsize=7)
    axes.set(xscale="log", xlabel="peak of the embedding part, GiB", ylim=(len(bars) - 0.4, -0.6))
    axes.set_xlim(bars["gib"].min() / 2, bars["gib"].max() * 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(False, axis="y")
    axes.legend(loc="upper right", fontsize=7)


def _bars(frame: pd.DataFrame) -> pd.DataFrame:
    """name, gib, how, published of what is drawn."""
    whole = dict(zip(table_1(), register.claim("ER-P-052").value, strict=True))
    kept = frame[(frame["rows"] == ROWS) & (frame["slices"].isna() | frame["slices"].isin(_ends(frame)))]
    rows = []
    for row in kept.itertuples():
        slices = "" if np.isnan(row.slices) else f", {_slices(row.slices)}"
        published = register.claim("ER-P-054").value if row.what == DENSE else whole.get(row.indices, np.nan)
        name = f"{row.what}{slices}\n{row.indices:,} ids"
        rows.append({"name": name, "gib": row.peak_bytes / 2**30, "how": row.how, "published": published})
    return pd.DataFrame(rows)


def _slices(count: float) -> str:
    return "1 slice" if count == 1 else f"{count:.0f} slices"


def _ends(frame: pd.DataFrame) -> list[float]:
    return [1, frame["slices"].max()]


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def saved(frame: pd.DataFrame, what: str, slices: float, column: str = "peak_bytes") -> float:
    """The share of a peak that so many slices save, of that with one."""
    rows = frame[frame["what"] == what].set_index("slices")
    return 1 - float(rows.loc[slices, column] / rows.loc[1, column])


def says(frame: pd.DataFrame) -> Said:
    head = (
        f"A table of {ROWS:,} × {DIM} in cores of rank {RANK}; hashed ids of a power law (SYNTHETIC), {_bag()} a bag."
    )
    return Said("\n".join([head, "", *(_slices_say(frame, what) for what in (TORCH, KERNELS)), "", _whole_says(frame)]))


def _slices_say(frame: pd.DataFrame, what: str) -> str:
    rows, most = frame[frame["what"] == what].set_index("slices"), frame["slices"].max()
    one, last = rows.loc[1], rows.loc[most]
    held, peak = (
        f"{one[name] / 1e6:.3g} to {last[name] / 1e6:.3g} MB" for name in ("intermediates_bytes", "peak_bytes")
    )
    spread = f"{one['total_ms']:.3g} ms in one slice, {one['total_ms_low']:.3g} to {one['total_ms_high']:.3g}"
    return (
        f"* {what}: from one slice to {most:.0f} what is held between products falls from {held}, the embedding part's "
        f"peak by {share(saved(frame, what, most))} from {peak}; the time is {last['total_ms'] / one['total_ms']:.2f} "
        f"times as long ({spread})."
    )


def _whole_says(frame: pd.DataFrame) -> str:
    whole, dense = frame[frame["what"] == WHOLE], frame[(frame["what"] == DENSE) & (frame["rows"] == ROWS)].iloc[0]
    last, each = whole.iloc[-1], whole.iloc[0]
    more = last["peak_bytes"] / dense["peak_bytes"]
    return (
        f"Multiplied as one product, an id holds {each['intermediates_bytes'] / each['indices']:,.0f} bytes between "
        f"products: {last['indices']:,} ids take {last['peak_bytes'] / 2**30:.1f} GiB, {more:.2f} times the peak of "
        "the table as it is (computed)."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    """Table 1 and the 38.5 %, by the slices that the source's experiments have."""
    slices = float(register.claim("ER-P-025").value[0])
    return [*_saving(frame, slices), *_of_table_1(frame)]


def _saving(frame: pd.DataFrame, slices: float) -> Iterator[dict]:
    if slices not in set(frame["slices"]):
        return
    at = frame[frame["what"] == TORCH].iloc[0]
    note = (
        f"{TORCH}, {slices:.0f} slices, {at['indices']:,} ids, n_u {share(at['unique'])} of them; peak of cores, their "
    )
    note += "gradients, plan, pooled rows and what lies between"
    for claim in ("ER-P-002", "ER-A-001"):
        yield answer(claim, 100 * saved(frame, TORCH, slices), MEASURED, note)
    yield answer("ER-A-002", 1 - saved(frame, TORCH, slices), MEASURED, note)
    yield answer("ER-P-018", divides(frame), MEASURED, f"{TORCH}: peak over 1 / slices is a line; operations are equal")


def divides(frame: pd.DataFrame) -> bool:
    """Whether what is held between products is a constant (the buffers of one batched product) and a part that the
    slices divide, to a tenth, and nothing more is multiplied."""
    rows = frame[frame["what"] == TORCH].sort_values("slices")
    inverse, held = 1 / rows["slices"].to_numpy(), rows["intermediates_bytes"].to_numpy(float)
    slope = (held[0] - held[-1]) / (inverse[0] - inverse[-1])
    predicted = held[0] - slope * (inverse[0] - inverse)
    return bool(slope > 0 and np.abs(held / predicted - 1).max() <= 0.1 and rows["operations"].nunique() == 1)


def _of_table_1(frame: pd.DataFrame) -> Iterator[dict]:
    whole = frame[frame["what"] == WHOLE].set_index("indices")
    dense = frame[frame["what"] == DENSE].set_index("rows")
    cores, gib = suggest(ROWS, DIM, rank=RANK).parameters * 4, 2**30
    yield answer("ER-P-049", cores / 1e9, COMPUTED, f"rank {RANK}")
    held = [float(whole.loc[n, "intermediates_bytes"]) / gib for n in table_1()]
    note = f"GiB, bytes an id as measured at {whole.index[0]:,} ids"
    yield answer("ER-P-052", held, COMPUTED, note)
    yield answer("ER-P-053", ROWS * DIM * 4 / gib, COMPUTED, "GiB")
    small = dense.loc[ROWS // SCALED]
    beside = (small["peak_bytes"] - small["table_bytes"]) / 1e6
    note = f"GiB; beside a table of {ROWS // SCALED:,} rows a step of {small['indices']:,} ids held {beside:.3g} MB"
    yield answer("ER-P-054", float(dense.loc[ROWS, "peak_bytes"]) / gib, MEASURED, note)
    last = table_1()[-1]
    over = float(whole.loc[last, "peak_bytes"] / dense.loc[ROWS, "peak_bytes"])
    yield answer("ER-P-055", over, COMPUTED, f"{last:,} ids in one product, over the whole table as it is")
