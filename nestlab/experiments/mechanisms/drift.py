"""A required edge taken away: what the validator says, and how far a training that runs anyway drifts from `plain`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.errors import UserError
from nestlab.experiments.mechanisms import toy
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Edge, Inline, Pipeline, Schedule, Shuffled, Stage, build
from nestlab.pipeline.executors import Executor
from nestlab.pipeline.validator import find_problems
from nestlab.techniques import Techniques

PLAIN, FLAGS = "device_tier=dual_buffer,micro_batches=2", "device_tier=dual_buffer,micro_batches=2,pipeline_depth=5"
# Name → the edge, as `str(edge)` shows it.
EDGES = {
    "copied before the update": "UPDATE(t-1) → COMMIT(t)",
    "fetched before the write-back": "WRITEBACK(t-2) → PREPARE(t)",
    "updated before the last part": "GRAD_EXCHANGE(t,1) → UPDATE(t)",
}
# What else hangs on an edge, and is kept so that rows alone are at stake: without it a stage would find its input
# missing, or torch notice that weights changed under it, and the training would stop.
_KEPT = {
    "UPDATE(t-1) → COMMIT(t)": (Edge(Stage.UPDATE, Stage.FORWARD, -1, target_part=0, reason="dense weights"),),
    "GRAD_EXCHANGE(t,1) → UPDATE(t)": (
        Edge(Stage.GRAD_EXCHANGE, Stage.UPDATE, source_part=0, reason="a sum to begin with"),
        Edge(Stage.GRAD_EXCHANGE, Stage.RELEASE, source_part=1, reason="the batch is still there"),
    ),
}
TITLE = "random batches over eight ids (SYNTHETIC)"
_DIM, _SAMPLES = 4, 6
_SMALLEST = 1e-9  # what is drawn at the foot of the logarithmic axis: differences of 0


def edge(schedule: Schedule, text: str) -> Edge:
    """The edge that reads so.

    Raises:
        UserError: the schedule has none.
    """
    found = [each for each in schedule.edges if str(each) == text]
    if not found:
        raise UserError(f"schedule {schedule.name} has no edge '{text}'; print(schedule) lists them")
    return found[0]


def taken_away(schedule: Schedule, text: str) -> Schedule:
    """Without the edge that reads so; what it implied beside is kept, so that rows alone are at stake."""
    broken = schedule.without(edge(schedule, text))
    return replace(broken, edges=(*broken.edges, *_KEPT.get(text, ())))


def complaint(schedule: Schedule, shown: int = 4) -> str:
    """What the validator finds, a line a problem; `safe` where it finds nothing."""
    problems = find_problems(schedule, schedule.shape.accesses)
    more = [f"… and {len(problems) - shown} more that follow from it"] if len(problems) > shown else []
    return "\n".join([*problems[:shown], *more]) or "safe"


def drift(steps: int, seeds: Iterable[int], seed: int = 0) -> pd.DataFrame:
    """Trains with each edge of `EDGES` taken away, and with none, in random orders that the other edges allow.

    Args:
        steps: batches of six samples over the eight ids.
        seeds: of the random orders.
        seed: of batches and initial weights.

    Returns:
        columns missing (name of the edge, or nothing), edge, order (seed), step, loss, drift: the largest difference of
        any loss so far from that of the plain loop.
    """
    data = batches(steps, seed)
    expected = losses(data, Techniques.parse(PLAIN), seed=seed)
    schedule = build(Techniques.parse(FLAGS))
    broken = {name: taken_away(schedule, text) for name, text in EDGES.items()}
    frames = []
    for name, each in {"nothing": schedule, **broken}.items():
        for order in seeds:
            found = losses(data, Techniques.parse(FLAGS), each, Shuffled(order), seed)
            gone = np.maximum.accumulate(np.abs(found - expected))
            frames.append(
                pd.DataFrame(
                    {
                        "missing": name,
                        "edge": EDGES.get(name, ""),
                        "order": order,
                        "step": range(steps),
                        "loss": found,
                        "drift": gone,
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row an edge: the first step with another loss, and the largest difference, over all orders."""

    def first(rows: pd.DataFrame) -> str:
        moved = rows.loc[rows["drift"] > 0, "step"]
        return "never: bit-equal" if moved.empty else str(int(moved.min()))

    grouped = frame.groupby(["missing", "edge"], sort=False)
    rows = [
        {
            "edge taken away": edge or "none",
            "what happens": "nothing" if not edge else missing,
            "orders": each["order"].nunique(),
            "first step with another loss": first(each),
            "largest difference of a loss": float(each["drift"].max()),
        }
        for (missing, edge), each in grouped
    ]
    return pd.DataFrame(rows)


def losses(
    data: list[Batch],
    techniques: Techniques,
    schedule: Schedule | None = None,
    executor: Executor | None = None,
    seed: int = 0,
) -> np.ndarray:
    """[steps] float64: the loss of each batch; the start weights depend on `seed` alone."""
    store = EmbeddingStore(
        [TableConfig(toy.FEATURE, _DIM)], optimizer("adagrad", lr=0.3), seed=seed, tiers=Tiers.of(techniques)
    )
    model = RecModel(store, DLRM(1, (toy.FEATURE,), _DIM, bottom=(4,), top=(4,), seed=seed))
    pipeline = Pipeline(
        model,
        torch.optim.Adam(model.dense.parameters(), lr=0.02),
        techniques,
        schedule=schedule,
        executor=executor or Inline(),
    )
    return np.array([float(output.loss) for output in pipeline.run(data)])


def batches(count: int, seed: int) -> list[Batch]:
    """Two ids of eight a sample: neighbours share some, others come back after a batch. The first id decides labels."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        ids = torch.randint(1, len(toy.IDS) + 1, (2 * _SAMPLES,), generator=generator)
        labels = (ids[::2] % 2).float()
        dense = torch.randn(_SAMPLES, 1, generator=generator)
        made.append(Batch(dense, (toy.FEATURE,), ids, torch.full((_SAMPLES,), 2), labels))
    return made


def picture(frame: pd.DataFrame, title: str) -> Figure:
    """A line a missing edge and order; what never differs lies at the foot of the axis."""
    with plotting.style():
        figure = plotting.new_figure(9.0, 4.0)
        axes = figure.add_subplot()
        for number, (name, rows) in enumerate(frame.groupby("missing", sort=False)):
            _lines(axes, rows, name, number)
        axes.set_yscale("log")
        axes.set_ylim(_SMALLEST / 2, max(1.0, 2 * frame["drift"].max()))
        axes.set_xlabel("step")
        axes.set_ylabel("largest difference of a loss so far")
        ticks = [tick for tick in axes.get_yticks() if _SMALLEST < tick <= max(1.0, frame["drift"].max())]
        axes.set_yticks([_SMALLEST, *ticks], ["0: bit-equal", *(f"{tick:g}" for tick in ticks)])
        axes.set_title(title)
        axes.legend(title="edge taken away", loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left")
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, name: str, number: int) -> None:
    text = EDGES.get(name)
    label = f"{text}\n({name})" if text else "none"
    style = plotting.series_style(number)
    for order, each in rows.groupby("order"):
        first = order == rows["order"].iloc[0]
        axes.plot(
            each["step"],
            each["drift"].clip(lower=_SMALLEST),
            **style,
            markersize=4,
            markevery=max(1, len(each) // 10),
            linewidth=1.4,
            label=label if first else None,
        )
