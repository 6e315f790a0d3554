"""The pipeline of the embedding layer, rung by rung, on ranks under an emulated link, as the source's ablation has it.

In order: every table is computed before anything travels. Batch-wise: all tables for a slice of the samples at a time.
Table-wise: groups of tables, as they are listed. Reordered: the cheapest groups first. Sloped: ever fewer tables a
group, so that the last one, whose rows nothing hides, is small.

Predicted before the first run: each rung is quicker than the one before but for batch-wise, which looks up a row once
in every slice that has it and so computes more than it hides; the step of the last rung is 0.75 of that in order, where
exchange and the tables' computation are about as long. Between products batch-wise takes the least memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.batching.table_groups import group_sizes
from nestlab.errors import UserError
from nestlab.experiments.ecorec.ladder_ranks import Climbed, Rung, on_rank
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.nestpipe.links import EMULATED
from nestlab.experiments.ranks import on_ranks
from nestlab.experiments.tables import (
    Said,
    answer,
    chosen,
    medians,
    rounds_text,
    share,
    spread_text,
    whiskers,
)
from nestlab.techniques import Techniques
from nestlab.tracing import Trace, plot_timeline

IN_ORDER, BATCH_WISE, TABLE_WISE, REORDERED, SLOPED = "in order", "batch-wise", "table-wise", "+ reorder", "+ slope"
LADDER = (BATCH_WISE, TABLE_WISE, REORDERED, SLOPED)  # what the source's figure has
TOLERANCE = 1e-4  # of weights in float32, where sums stand in another order
_PARTS = {
    "tables_ms": "tables, forward and backward",
    "dense_ms": "dense part, and updates",
    "exposed_rows_ms": "waiting for rows and gradients",
    "exposed_ids_ms": "ids: routing and sorting",
    "rest_ms": "waiting for the rest",
}
_BYTES = {
    "intermediate_bytes": "between products",
    "exchange_bytes": "rows and gradients on their way or waiting",
    "tables_bytes": "tables of a rank",
}
_DIGEST = {
    "case": "case",
    "step_ms": "step, ms (median round)",
    "spread": "step, ms (least to most)",
    "speedup": "speed, × in order (median of rounds)",
    "tables_ms": "tables, ms",
    "exchange_ms": "exchange, ms",
    "exposed_rows_ms": "exchange exposed, ms",
    "exposed_share": "of it, %",
    "exposed_ids_ms": "ids exposed, ms",
    "operations": "operations a step",
    "intermediate_bytes": "between products, MB",
    "exchange_bytes": "rows on their way, MB",
    "peak_bytes": "peak, MB",
    "bit_equal": "bits of in order",
    "difference": "largest difference to in order",
    "how": "how",
}


@dataclass(frozen=True)
class Measured:
    """A row a rung and round, and of each rung the trace of its last round, of all ranks."""

    frame: pd.DataFrame
    traces: dict[str, Trace] = field(default_factory=dict)


def rungs(settings: Settings) -> tuple[Rung, ...]:
    """In order first; then the source's four, the steepest slope and half of it."""
    plain, groups = Techniques(table_kind="tt"), {"table_kind": "tt", "table_groups": settings.groups}
    return (
        Rung(IN_ORDER, plain),
        Rung(BATCH_WISE, Techniques(**groups, group_by="samples")),
        Rung(TABLE_WISE, Techniques(**groups, group_order="number")),
        Rung(REORDERED, Techniques(**groups)),
        Rung(f"{SLOPED} {settings.slope / 2:g}", Techniques(**groups, group_slope=settings.slope / 2)),
        Rung(SLOPED, Techniques(**groups, group_slope=settings.slope)),
    )


def run(settings: Settings) -> pd.DataFrame:
    return measure(settings).frame


def measure(settings: Settings, logs: Path | None = None) -> Measured:
    """Starts the ranks once; every rung trains the same batches, in turns.

    Args:
        logs: where the ranks say what they do.

    Raises:
        UserError: a rank has fewer tables than there are groups, or there are fewer than two groups.
        RuntimeError: a rung learnt something else than the plain order, which would be a fault of the pipeline.
    """
    if not 2 <= settings.groups <= settings.ladder_tables:
        raise UserError(
            f"ecorec: groups={settings.groups} of the {settings.ladder_tables} tables of a rank; give 2 to "
            f"{settings.ladder_tables}"
        )
    found = on_ranks(on_rank, settings, rungs(settings), world_size=settings.world_size, logs=logs)
    return checked(found)


def checked(found: Climbed) -> Measured:
    """Raises RuntimeError where weights are not those of the plain order, to the bit or up to the order of sums."""
    frame = pd.DataFrame(found.rows)
    for row in frame.drop_duplicates("case").itertuples():
        if not (row.difference < TOLERANCE if row.case == BATCH_WISE else row.bit_equal):
            raise RuntimeError(f"{row.case}: weights differ from those of the plain order by {row.difference:.3g}")
    return Measured(frame, found.traces)


def by_case(frame: pd.DataFrame) -> pd.DataFrame:
    """The median round of each rung, with the spread, and what follows from it.

    `speedup` compares the two steps of each round, and is the median over the rounds: what slows the machine down for a
    while slows both. `paired_ms` is the step in order over it.
    """
    found = medians(frame, ["case"]).set_index("case", drop=False)
    found["spread"] = found.apply(spread_text, axis=1)
    steps = frame.pivot(index="round", columns="case", values="step_ms")
    found["speedup"] = steps.rdiv(steps[IN_ORDER], axis=0).median()
    found["paired_ms"] = found.loc[IN_ORDER, "step_ms"] / found["speedup"]
    found["exposed_share"] = found["exposed_rows_ms"] / found["exchange_ms"].where(found["exchange_ms"] > 0)
    return found


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(by_case(frame).reset_index(drop=True), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    """What each rung hides, what batch-wise costs, and whether the order is the source's."""
    found = by_case(frame)
    first, last, table, batch = (found.loc[name] for name in (IN_ORDER, SLOPED, TABLE_WISE, BATCH_WISE))
    speeds = ", ".join(f"{name} {found.loc[name, 'speedup']:.2f}" for name in LADDER)
    falls = all(a > b for a, b in pairwise(_steps(found)))
    return Said(
        f"Speed of a step against that in order ({first['step_ms']:.3g} ms), in the same round: {speeds}; the source's "
        f"order {'holds' if falls else 'does not hold everywhere'}. In order the rows "
        f"and gradients that travel are waited for {first['exposed_rows_ms']:.3g} ms, table-wise "
        f"{table['exposed_rows_ms']:.3g} ms, on the last rung {last['exposed_rows_ms']:.3g} ms of "
        f"{last['exchange_ms']:.3g} ms. Batch-wise does {batch['operations'] / first['operations']:.2f} times the "
        f"operations, since a row comes again in every slice of the samples, and holds "
        f"{share(batch['intermediate_bytes'] / first['intermediate_bytes'])} of the bytes between products. Table-wise "
        "rungs have the bits of the plain order; batch-wise, which sums slice by slice, differs by at most "
        f"{batch['difference']:.1g}."
    )


def _steps(found: pd.DataFrame) -> list[float]:
    return [float(found.loc[name, "paired_ms"]) for name in LADDER]


def answers(frame: pd.DataFrame) -> list[dict]:
    found, steps = by_case(frame), _steps(by_case(frame))
    note = "the step in order over the speed in the same round: " + ", ".join(
        f"{name} {ms:.3g} ms" for name, ms in zip(LADDER, steps, strict=True)
    )
    table, plain = steps[1], float(found.loc[IN_ORDER, "step_ms"])
    return [
        answer("ER-P-020", table / plain, EMULATED, f"{plain:.3g} → {table:.3g} ms a step"),
        answer("ER-P-021", steps[2] / table, EMULATED, f"{table:.3g} → {steps[2]:.3g} ms a step"),
        answer("ER-P-022", slopes_hold(), "computed", "1 to 40 tables in 1 to 8 groups, slopes 0, ½ and 1"),
        answer("ER-P-046", steps, EMULATED, note),
    ]


def slopes_hold() -> bool:
    """Sizes of groups sum to the tables, never rise, and are at least 1."""
    cases = [(n, g, slope) for n in range(1, 41) for g in range(1, 9) for slope in (0.0, 0.5, 1.0)]
    sizes = [(n, group_sizes(n, g, slope)) for n, g, slope in cases]
    return all(sum(cut) == n and min(cut) >= 1 and list(cut) == sorted(cut, reverse=True) for n, cut in sizes)


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Where the step goes on each rung, and beside it the bytes that it holds."""
    found = by_case(frame).reset_index(drop=True)
    with plotting.style():
        figure = plotting.new_figure(10.5, 4.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        times, sizes = figure.subplots(1, 2, width_ratios=(1.6, 1), sharey=True)
        _stack(times, found, _PARTS, 1.0)
        times.errorbar(found["step_ms"], found.index, xerr=whiskers(found), fmt="none", ecolor=plotting.INK, capsize=3)
        for y, row in found.iterrows():
            text = f"{row['step_ms']:.3g} ({row['speedup']:.2f}×)"
            at = (row["step_ms_high"], y)
            times.annotate(text, at, (4, 0), textcoords="offset points", va="center", fontsize=8)
        note = "in brackets: speed against in order, median of what it is round by round"
        times.set(xlabel=f"ms a step ({rounds_text(int(found['rounds'].max()))})\n{note}", yticks=found.index)
        times.set_yticklabels(found["case"])
        times.invert_yaxis()
        times.margins(x=0.16)
        _stack(sizes, found, _BYTES, 1e-6)
        sizes.set_xlabel("MB, each kind at its highest, fullest rank")
        for axes in (times, sizes):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return figure


def _stack(axes, found: pd.DataFrame, parts: dict[str, str], scale: float) -> None:
    left = np.zeros(len(found))
    for number, (column, label) in enumerate(parts.items()):
        width = found[column].to_numpy() * scale
        axes.barh(found.index, width, 0.7, left, label=label, **plotting.bar_style(number))
        left = left + width
    axes.grid(False, axis="y")


def timeline(trace: Trace, case: str) -> Figure:
    """One step of one rank (all are alike): the last whole one."""
    one = trace.only(trace.ranks[0])
    return plot_timeline(one, one.batches[-1], 1, f"{case[0].upper()}{case[1:]}: one step of one rank")
