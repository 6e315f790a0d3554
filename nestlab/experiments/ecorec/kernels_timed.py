"""The three schemes on one table: preparing (sorting), forward and backward, over the batch and over the rank.

Predicted before the first run, from the multiplications: EcoRec over TT-Rec 3 times at 2,048 hashed ids and 10 at
131,072, over EL-Rec 1.2 and 2; with uniform ids nothing is saved, and sorting is a tenth of EcoRec's time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes import SCHEMES, EcoRec, ELRec, TTRec
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.shape import TTShape, suggest
from nestlab.embedding.tensor_train.work import Work
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.redundancy import prefix_shares
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, SKEW, drawn
from nestlab.experiments.tables import Said, answer, chosen

NAMES = {"tt_rec": "TT-Rec", "el_rec": "EL-Rec", "ecorec": "EcoRec"}
OVER_BATCH, OVER_RANK = "over the batch", "over the rank"
PARTS = ("prepare", "forward", "backward")
_DIGEST = {
    "ids": "ids",
    "batch": "batch, ids",
    "rank": "rank",
    "scheme": "scheme",
    "prepare_ms": "prepare, ms",
    "forward_ms": "forward, ms",
    "backward_ms": "backward, ms",
    "total_ms": "all three, ms",
    "total_ms_low": "least",
    "total_ms_high": "most",
    "speedup": "EcoRec is faster, ×",
    "needs": "operations over EcoRec's, ×",
    "gflops": "GFLOP/s",
    "unique": "n_u / ids, %",
    "prefixes": "n_p / ids, %",
    "peak_bytes": "peak of intermediates, MB",
    "how": "how",
}


@dataclass(frozen=True, eq=False)
class Task:
    """A look-up and a gradient for what comes of it."""

    shape: TTShape
    cores: tuple[Tensor, ...]
    bags: Bags
    grad: Tensor

    @classmethod
    def of(cls, shape: TTShape, rows: np.ndarray, seed: int, bag: int = 1) -> Task:
        """So many rows a bag, the last one with what is left; weights are small random numbers."""
        torch.manual_seed(seed)
        cores = tuple(0.1 * torch.randn(p, width) for p, width in zip(shape.row_factors, shape.widths, strict=True))
        offsets = torch.from_numpy(np.append(np.arange(0, rows.size, bag), rows.size))
        bags = Bags(torch.from_numpy(rows), offsets)
        return cls(shape, cores, bags, torch.randn(bags.count, shape.dim))

    def time(self, scheme: Scheme) -> dict[str, float]:
        """Milliseconds of the three parts and of all, operations, and bytes of intermediates at the peak."""
        into, work, at = [torch.zeros_like(core) for core in self.cores], Work(), [time.perf_counter()]
        plan = scheme.prepare(self.shape, self.bags)
        at.append(time.perf_counter())
        scheme.forward(self.shape, self.cores, plan, work)
        at.append(time.perf_counter())
        scheme.backward(self.shape, self.cores, plan, self.grad, into, work)
        at.append(time.perf_counter())
        parts = {f"{part}_ms": 1e3 * (b - a) for part, a, b in zip(PARTS, at, at[1:], strict=False)}
        return {**parts, "total_ms": 1e3 * (at[-1] - at[0]), "operations": work.operations, "peak_bytes": work.peak}


def run(settings: Settings) -> pd.DataFrame:
    """A row a kind of ids, batch, rank and scheme; within each batch the schemes take turns.

    Columns: sweep, ids, batch, rank, table_rows, dim, scheme, variant (of a baseline, the faster of two: one product an
    id, or what shares a slice as one matrix), prepare_ms, forward_ms, backward_ms, total_ms (medians of the rounds),
    total_ms_low, total_ms_high, rounds, threads, operations, gflops (of the total), peak_bytes (of intermediates),
    plan_bytes, unique, prefixes (n_u and n_p over the ids), speedup and needs (time and operations over EcoRec's), how.
    """
    cases = [(OVER_BATCH, kind, batch, settings.rank) for kind in settings.kinds for batch in settings.batches]
    kind = HASHED if HASHED in settings.kinds else settings.kinds[0]
    cases += [(OVER_RANK, kind, settings.at_batch, rank) for rank in settings.ranks]
    with computing(settings.threads):
        return pd.DataFrame([row for case in cases for row in _case(settings, *case)])


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """So many threads compute; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _case(settings: Settings, sweep: str, kind: str, batch: int, rank: int) -> list[dict[str, Any]]:
    shape = suggest(settings.table_rows, settings.dim, rank=rank)
    rows = drawn(kind, batch, settings.table_rows, settings.seed)
    prefixes, unique = prefix_shares(rows, shape)
    about = {"sweep": sweep, "ids": kind, "batch": batch, "rank": rank, "table_rows": settings.table_rows}
    about |= {"dim": settings.dim, "threads": torch.get_num_threads(), "unique": unique, "prefixes": prefixes}
    found = [about | row for row in timed(Task.of(shape, rows, settings.seed), settings.repeats)]
    ours = found[-1]
    for row in found:
        row["speedup"], row["needs"] = (row[name] / ours[name] for name in ("total_ms", "operations"))
    return found


def timed(task: Task, repeats: int) -> Iterator[dict[str, Any]]:
    """A row a scheme, EcoRec's the last: all take turns, after a first time each that does not count."""
    tried = {name: _fastest(task, variants) for name, variants in _variants().items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in tried}
    for number in range(repeats):
        names = list(tried)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rounds[name].append(task.time(tried[name][1]))
    for name, each in rounds.items():
        found = pd.DataFrame(each)
        row = {"scheme": name, "variant": tried[name][0], **found.median().to_dict()}
        row |= {"total_ms_low": found["total_ms"].min(), "total_ms_high": found["total_ms"].max(), "rounds": repeats}
        row["gflops"] = row["operations"] / row["total_ms"] / 1e6
        row["plan_bytes"] = tried[name][1].prepare(task.shape, task.bags).nbytes
        yield row | {"how": "measured"}


def _variants() -> dict[str, dict[str, Scheme]]:
    """A baseline should be as fast as it can be made: the same operations in two ways."""
    both = {
        name: {"one product an id": kind(), "one matrix a slice": kind(grouped=True)}
        for name, kind in (("tt_rec", TTRec), ("el_rec", ELRec))
    }
    assert [*both, "ecorec"] == list(SCHEMES)
    return both | {"ecorec": {"": EcoRec()}}


def _fastest(task: Task, variants: dict[str, Scheme]) -> tuple[str, Scheme]:
    """By a first run of each, which also compiles what there is to compile."""
    took = {name: task.time(scheme)["total_ms"] for name, scheme in variants.items()}
    if len(took) > 1:
        took = {name: min(ms, task.time(variants[name])["total_ms"]) for name, ms in took.items()}
    best = min(took, key=took.get)
    return best, variants[best]


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Time over the batch, a panel a kind of ids; over the rank; the parts at the largest batch; and the speed-ups."""
    from nestlab.experiments.ecorec import kernels_plot

    return kernels_plot.draw(frame, title)


def published() -> pd.DataFrame:
    """Figure 11 of the source, from the register: batch, and the speed-ups over both baselines."""
    over = {"el_rec": register.claim("ER-P-044"), "tt_rec": register.claim("ER-P-045")}
    batches = [int(label) for label in over["el_rec"].labels]
    return pd.DataFrame({"batch": batches} | {name: claim.value for name, claim in over.items()})


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """Every second batch, and all ranks."""
    batches = sorted(set(frame["batch"]))
    kept = frame["batch"].isin(batches[::-1][::3]) | (frame["sweep"] == OVER_RANK)
    return chosen(frame[kept].replace({"scheme": NAMES}), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    over = frame[frame["sweep"] == OVER_BATCH]
    lines = [
        f"One table of {frame['table_rows'].iloc[0]:,} × {frame['dim'].iloc[0]}, rank {over['rank'].iloc[0]}, "
        f"{frame['threads'].iloc[0]} thread(s), {frame['rounds'].iloc[0]} round(s); ids are SYNTHETIC, of skew {SKEW}.",
        "",
    ]
    for kind, rows in over.groupby("ids", sort=False):
        lines.append(f"* *{kind}*: {'; '.join(_speedups(rows, name) for name in ('tt_rec', 'el_rec'))}.")
    ours = over[(over["scheme"] == "ecorec") & (over["batch"] == over["batch"].max())]
    sorting = ", ".join(
        f"{p:.0%} ({k})" for p, k in zip(ours["prepare_ms"] / ours["total_ms"], ours["ids"], strict=True)
    )
    lines += ["", f"Sorting and deduplication are in these times: of EcoRec's at the largest batch {sorting}."]
    return Said("\n".join(lines))


def _speedups(rows: pd.DataFrame, name: str) -> str:
    times = rows[rows["scheme"] == name].set_index("batch")
    low, high = times.index.min(), times.index.max()
    return (
        f"{times.loc[low, 'speedup']:.2f} to {times.loc[high, 'speedup']:.2f} times as fast as {NAMES[name]} "
        f"({low:,} to {high:,} ids), which does {times.loc[low, 'needs']:.2f} to {times.loc[high, 'needs']:.2f} times "
        "as many operations"
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    """Figure 11, by hashed ids, the preparing counted with forward; where all of its batch sizes were timed."""
    rows = frame[(frame["sweep"] == OVER_BATCH) & (frame["ids"] == HASHED)]
    by = {name: rows[rows["scheme"] == name].set_index("batch") for name in NAMES}
    batches = published()["batch"].tolist()
    if not set(batches) <= set(by["ecorec"].index):
        return []
    note = f"one table of {rows['table_rows'].iloc[0]:,} × {rows['dim'].iloc[0]}, rank {rows['rank'].iloc[0]}, CPU; "
    note += f"hashed ids (SYNTHETIC, skew {SKEW})"
    return list(_figure_11(by, batches, note))


def _figure_11(by: dict[str, pd.DataFrame], batches: Sequence[int], note: str) -> Iterable[dict]:
    for name, forward, total in (
        ("ecorec", "ER-P-038", "ER-P-039"),
        ("el_rec", "ER-P-040", "ER-P-041"),
        ("tt_rec", "ER-P-042", "ER-P-043"),
    ):
        at = by[name].loc[batches]
        yield answer(forward, (at["prepare_ms"] + at["forward_ms"]).tolist(), "measured", note)
        yield answer(total, at["total_ms"].tolist(), "measured", note)
    for claim, name in (("ER-P-044", "el_rec"), ("ER-P-045", "tt_rec")):
        yield answer(claim, by[name].loc[batches, "speedup"].tolist(), "measured", f"{note}; variant by batch: fastest")


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """Geometric means of the speed-ups over all batches, by kind of ids (all of them drawn, not data)."""
    over = frame[frame["sweep"] == OVER_BATCH]
    return {
        f"synthetic_{kind}_vs_{name}": float(np.exp(np.log(rows["speedup"]).mean()))
        for (kind, name), rows in over[over["scheme"] != "ecorec"].groupby(["ids", "scheme"], sort=False)
    }
