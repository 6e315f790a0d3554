"""A whole DLRM step on Criteo: ordinary tables, and the large ones as tensor trains that are multiplied in three ways.

Predicted before the first run: EcoRec's step is the shortest of the three schemes, since dense part and small tables
cost all of them the same and TT-Rec multiplies most; ordinary tables, whose look-up copies rows and multiplies nothing,
are quicker still and take most memory. Batches of the 5,000 real rows have few duplicates, which narrows the gap.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from nestlab import device
from nestlab.batch import Batch
from nestlab.data import Dataset
from nestlab.embedding import EmbeddingStore, optimizer
from nestlab.experiments.ecorec.end_to_end_plot import draw
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import opened
from nestlab.experiments.tables import Said, chosen, medians, share, spread_text
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace
from nestlab.tracing.memory import DEVICE
from nestlab.training.tables import known_ids, tables_of

Figures = dict[str, Any]
ROW, SCHEMES = "row", {"tt_rec": "TT-Rec", "el_rec": "EL-Rec", "ecorec": "EcoRec"}
NAMES = {ROW: "ordinary rows", **SCHEMES}
LARGE = 0.25  # tables with at least this share of the ids of the largest one become tensor trains
# SGD on tables and dense part, as the source has it: a step is linear in its gradient, and so are differences. Adagrad,
# whose first step has the sign of a gradient alone, would make a whole step of what is rounding.
LR = 0.05
TOLERANCE = 1e-4  # of weights in float32 after all steps; another order of sums stays well below it
_WARM = 2
_DISTINCT = 8  # batches that come again and again
# What tables do in a step but for their update, which is told from the dense part's by hooks.
STAGES = {
    "forward_ms": ("EMB_EXCHANGE", "TT_FORWARD", "TT_EXCHANGE"),
    "backward_ms": ("GRAD_EXCHANGE", "TT_GRAD_EXCHANGE", "TT_BACKWARD"),
    "look_up_ms": ("ROUTE", "PREPARE", "RELEASE"),
}
_DIGEST = {
    "data": "data",
    "name": "large tables",
    "trains": "tensor trains",
    "samples": "samples a step",
    "step_ms": "step, ms (median round)",
    "spread": "step, ms (least to most)",
    "tables_share": "of it tables, %",
    "look_up_ms": "ids, ms",
    "forward_ms": "tables forward, ms",
    "backward_ms": "tables backward, ms",
    "update_ms": "tables update, ms",
    "operations": "operations a step",
    "tables_bytes": "tables, MB",
    "intermediate_bytes": "between products, MB",
    "peak_bytes": "peak, MB",
    "peak_of_row": "peak, of ordinary tables', %",
    "loss": "last loss",
    "difference": "largest difference to EcoRec",
    "loss_difference": "of a loss",
    "how": "how",
}


@dataclass(eq=False)
class Contender:
    """One model that takes turns with the others. `dense_ns`: the steps of its dense optimizer."""

    kind: str
    pipeline: Pipeline
    batches: Iterator[Batch]
    dense_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def store(self) -> EmbeddingStore:
        return self.pipeline.model.embedding

    def step(self) -> None:
        start = time.perf_counter_ns()
        output = self.pipeline.progress(self.batches)
        self.step_ns.append(time.perf_counter_ns() - start)
        self.losses.append(float(output.loss))

    def learnt(self) -> dict[str, torch.Tensor]:
        """Cores and dense weights, by name."""
        cores = {f"{t.config.name}.{k}": w for t in self.trains for k, w in enumerate(t.cores.weights)}
        return cores | {name: value.detach() for name, value in self.pipeline.model.dense.named_parameters()}

    @property
    def trains(self) -> list:
        return list(self.store.whole.own.values())


def run(settings: Settings) -> pd.DataFrame:
    """A row a data set, kind of table and round; what is compared is stepped in turns.

    Raises:
        RuntimeError: the three schemes did not learn the same, which would be a fault of one of them.
    """
    return pd.DataFrame([row for dataset in datasets(settings) for row in _on(dataset, settings)])


def datasets(settings: Settings) -> Iterator[Dataset]:
    """Criteo's rows where they are, and the twin, which has as many as are asked for."""
    first = opened(settings.dataset if settings.dataset.startswith("criteo") else "criteo", settings)
    if first.info.kind == "real":
        yield first
    yield opened("criteo-synth", settings)


def _on(dataset: Dataset, settings: Settings) -> Iterator[Figures]:
    first, stop = dataset.rows("train")
    size = min(settings.step_batch, (stop - first) // 2)
    batches = list(dataset.batches("train", size, drop_last=True, limit=_DISTINCT))
    most = max(known_ids(dataset, name) for name in dataset.features)
    contenders = [_contender(kind, dataset, batches, int(LARGE * most), settings) for kind in NAMES]
    for number in range(_WARM + settings.repeats * settings.steps):
        for contender in contenders[number % len(NAMES) :] + contenders[: number % len(NAMES)]:
            contender.step()
    known = {"data": dataset.info.title, "samples": size, "threads": torch.get_num_threads(), "how": "measured"}
    for contender in contenders:
        told = {**known, "kind": contender.kind, "name": NAMES[contender.kind]}
        told |= _memory(contender) | _differences(contender, contenders[-1])
        yield from ({**told, **row} for row in _rounds(contender, settings))


def _contender(kind: str, dataset: Dataset, batches: Sequence[Batch], large: int, settings: Settings) -> Contender:
    flags = _flags(kind, large, settings)
    store = EmbeddingStore(tables_of(dataset, settings.dim, flags), optimizer("sgd", lr=LR), seed=settings.seed)
    dense = DLRM(len(dataset.dense_names), dataset.features, settings.dim, seed=settings.seed)
    where = device.resolve(settings.device)
    dense.to(where)
    sgd = torch.optim.SGD(dense.parameters(), lr=LR)
    recorder = Recorder(_WARM, settings.repeats * settings.steps)
    pipeline = Pipeline(RecModel(store, dense), sgd, flags, device=where, recorder=recorder)
    contender = Contender(kind, pipeline, itertools.cycle(batches))
    sgd.register_step_pre_hook(lambda *_: contender.dense_ns.append(-time.perf_counter_ns()))
    sgd.register_step_post_hook(lambda *_: _end(contender.dense_ns))
    return contender


def _end(spans: list[int]) -> None:
    spans[-1] += time.perf_counter_ns()


def _flags(kind: str, large: int, settings: Settings) -> Techniques:
    if kind == ROW:
        return Techniques()
    return Techniques(table_kind="tt", tt_scheme=kind, tt_rank=settings.rank, tt_from=large)


def _rounds(contender: Contender, settings: Settings) -> Iterator[Figures]:
    """Medians over the steps of each round, times in ms; the share is of the sums."""
    by_step = _stage_ns(contender.pipeline.trace())
    for number in range(settings.repeats):
        steps = range(_WARM + number * settings.steps, _WARM + (number + 1) * settings.steps)
        times = {name: [sum(by_step[t][s] for s in stages) for t in steps] for name, stages in STAGES.items()}
        times["update_ms"] = [by_step[t]["UPDATE"] - contender.dense_ns[t] for t in steps]
        whole = [contender.step_ns[t] for t in steps]
        row = {name: float(np.median(each)) / 1e6 for name, each in {"step_ms": whole, **times}.items()}
        row["tables_share"] = sum(map(sum, times.values())) / sum(whole)
        row["tables_ms"] = sum(row[name] for name in times)
        yield {"round": number, **row}


def _stage_ns(trace: Trace) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for event in trace.events:
        found[event.batch][event.stage] += event.duration_ns
    return found


def _memory(contender: Contender) -> Figures:
    """Bytes: of all tables, of what is held between the products of a look-up at most, and of all else in a step."""
    by_kind = contender.pipeline.memory(contender.pipeline.trace()).set_index("kind")["peak_bytes"]
    intermediate = max((table.work.peak for table in contender.trains), default=0)
    rest = int(by_kind[DEVICE])
    return {
        "trains": len(contender.trains),
        "core_bytes": sum(
            weight.numel() * weight.element_size() for t in contender.trains for weight in t.cores.weights
        ),
        "tables_bytes": int(by_kind["tables"]),
        "intermediate_bytes": intermediate,
        "rest_bytes": rest,
        "peak_bytes": int(by_kind["tables"]) + intermediate + rest,
        "operations": sum(table.work.operations for table in contender.trains) / len(contender.losses),
    }


def _differences(contender: Contender, reference: Contender) -> Figures:
    """To EcoRec after the same steps: weights and losses; no row table is claimed to learn the same."""
    if contender.kind == ROW:
        return {"loss": contender.losses[-1], "difference": None, "loss_difference": None, "same": None}
    own, other = contender.learnt(), reference.learnt()
    largest = max(float((own[name] - other[name]).abs().max()) for name in own)
    losses = max(abs(a - b) for a, b in zip(contender.losses, reference.losses, strict=True))
    if not max(largest, losses) < TOLERANCE:
        raise RuntimeError(
            f"{NAMES[contender.kind]} and {NAMES[reference.kind]} differ by {largest:.3g} in a weight and {losses:.3g} "
            f"in a loss after {len(contender.losses)} steps; rounding explains {TOLERANCE} at most"
        )
    return {"loss": contender.losses[-1], "difference": largest, "loss_difference": losses, "same": True}


def by_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """The median round of each data set and kind of table, with the spread."""
    found = medians(frame, ["data", "kind"])
    found["spread"] = found.apply(spread_text, axis=1)
    row = found[found["kind"] == ROW].set_index("data")["peak_bytes"]
    found["peak_of_row"] = found["peak_bytes"] / found["data"].map(row)
    return found


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(by_kind(frame), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    """Step, share of the tables and memory of each scheme against the others, and that they learn the same."""
    found = by_kind(frame).set_index(["data", "kind"])
    lines = []
    for name in found.index.unique("data"):
        eco, el, tt, row = (found.loc[(name, kind)] for kind in ("ecorec", "el_rec", "tt_rec", ROW))
        speed = [f"{other['step_ms'] / eco['step_ms']:.2f} times as fast as " for other in (el, tt, row)]
        lines.append(
            f"{name}: of EcoRec's step {share(eco['tables_share'])} are tables; it is {speed[0]}EL-Rec's, {speed[1]}"
            f"TT-Rec's and {speed[2]}that of ordinary tables. All tables take {eco['tables_bytes'] / 1e6:.1f} MB with "
            f"tensor trains and {row['tables_bytes'] / 1e6:.1f} MB without."
        )
    most = max(frame["difference"].dropna())
    return Said(
        "\n\n".join(lines)
        + f"\n\nAfter the same steps no weight of the three schemes differs by more than {most:.1g}: the order of sums."
    )


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A column a data set: where the step goes, and the bytes that it takes at most."""
    return draw(by_kind(frame), title)
