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
from matplotlib.figure import Figure

from nestlab.embedding.tensor_train.ecorec_plan import plan_torch
from nestlab.embedding.tensor_train.schemes import EcoRec, ELRec, TTRec
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.shape import suggest
from nestlab.embedding.tensor_train.work import Work
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.kernels_timed import Task, computing
from nestlab.experiments.ecorec.live import Live
from nestlab.experiments.ecorec.redundancy import prefix_shares
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, drawn
from nestlab.experiments.tables import Said, chosen, share

ROWS, DIM, RANK = 100_000_000, 32, 32  # of table 1 of the source
SCALED = 100  # a table as it is would take gigabytes: one with so many times fewer rows is built
MEASURED, COMPUTED = "measured", "computed"
DENSE, WHOLE, CHUNKED = "table as it is", "TT-Rec, one product", "TT-Rec, in chunks"
FORWARD = "TT-Rec, in chunks, forward alone"
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
        rows = [*_sliced(settings), *_forward(settings), *_whole(settings), *_dense(settings)]
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


def _forward(settings: Settings) -> Iterator[dict[str, Any]]:
    """The batches of table 1, or a share of them, forward alone and in turns."""
    tasks = [_task(settings, max(1, int(settings.forward_share * indices))) for indices in table_1()]
    scheme, took, works = TTRec(), [[] for _ in tasks], [Work() for _ in tasks]
    for _ in range(max(2, settings.repeats)):  # the first time does not count
        for task, times, work in zip(tasks, took, works, strict=True):
            plan, started = scheme.prepare(task.shape, task.bags), time.perf_counter()
            scheme.forward(task.shape, task.cores, plan, work)
            times.append({"total_ms": 1e3 * (time.perf_counter() - started)})
    for task, times, work in zip(tasks, took, works, strict=True):
        told = {"peak_bytes": work.peak, "operations": work.operations // len(times)}
        row = _account(task, scheme, [told | each for each in times[1:]])
        yield {"what": FORWARD, **row, "grads_bytes": 0, "rows_bytes": task.grad.nbytes, "how": MEASURED}


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
    from nestlab.experiments.ecorec import memory_plot

    return memory_plot.draw(frame, title)


def answers(frame: pd.DataFrame) -> list[dict]:
    """Table 1 and the saving of memory, see `memory_claims`."""
    from nestlab.experiments.ecorec import memory_claims

    return memory_claims.answers(frame)


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
