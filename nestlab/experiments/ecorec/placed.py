"""Tables placed on ranks whole, by greedy longest-first on costs that were measured, beside three ways that are not.

Predicted before the first run: 100 tables of Zipf-like sizes leave the fullest of 8 ranks within 5 % of the mean, and
tables in the order they are listed far from it, since neighbours are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.batching.placement import load_ratio, lpt, rank_loads
from nestlab.embedding.tensor_train.schemes import EcoRec
from nestlab.embedding.tensor_train.shape import suggest
from nestlab.experiments.ecorec.kernels_timed import Task, computing
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import HASHED, drawn
from nestlab.experiments.tables import Said, answer, chosen

_ROWS, _IDS, _LEAST = 1_000_000, 16_384, 64  # of the largest table; the k-th has a share of k to the power of −SKEW
_SKEW = 0.6
_DIM, _RANK = 32, 16
BY_COST, BY_ROWS, LISTED, DEALT = "LPT by measured cost", "LPT by rows", "as listed, equal numbers", "dealt in turn"
_DIGEST = {
    "placement": "placement",
    "load_ratio": "fullest rank over the mean",
    "later_ratio": "by costs measured later",
    "fullest_ms": "fullest rank, ms",
    "mean_ms": "mean, ms",
    "peak_bytes": "cores of the fullest rank, MB",
    "tables": "tables",
    "ranks": "ranks",
    "how": "how",
}


def run(settings: Settings) -> pd.DataFrame:
    """A row a placement: placement, tables, ranks, load_ratio (summed cost of the fullest rank over the mean, by the
    costs that the placement went by, or would have gone by), later_ratio (by costs measured again afterwards),
    fullest_ms, mean_ms, peak_bytes (cores and gradients, on the rank with most), how. A cost is the time of a look-up
    and its gradient, the quicker of the rounds."""
    sizes = np.arange(1, settings.placed + 1) ** -_SKEW
    rows = np.maximum(_LEAST, _ROWS * sizes).astype(int)
    tasks = [_task(*each) for each in zip(rows.tolist(), np.maximum(_LEAST, _IDS * sizes).astype(int), strict=True)]
    with computing(settings.threads):
        _costs(tasks, 1)
        costs, later = _costs(tasks, settings.repeats), _costs(tasks, settings.repeats)
    cores = [2 * sum(core.nbytes for core in task.cores) for task in tasks]
    ranks, count = settings.placed_on, settings.placed
    ways = {
        BY_COST: lpt(costs, ranks),
        BY_ROWS: lpt(rows.tolist(), ranks),
        LISTED: [table * ranks // count for table in range(count)],
        DEALT: [table % ranks for table in range(count)],
    }
    found = []
    for name, owner in ways.items():
        loads = rank_loads(costs, owner, ranks)
        row = {"placement": name, "tables": count, "ranks": ranks, "load_ratio": load_ratio(costs, owner, ranks)}
        row |= {"later_ratio": load_ratio(later, owner, ranks), "fullest_ms": loads.max(), "mean_ms": loads.mean()}
        found.append(row | {"peak_bytes": int(rank_loads(cores, owner, ranks).max()), "how": "measured"})
    return pd.DataFrame(found)


def _task(rows: int, ids: int) -> Task:
    return Task.of(suggest(rows, _DIM, rank=_RANK), drawn(HASHED, int(ids), rows, rows), rows)


def _costs(tasks: Sequence[Task], rounds: int) -> list[float]:
    """Milliseconds of each table, all tables round by round."""
    scheme = EcoRec()
    took = [[task.time(scheme)["total_ms"] for task in tasks] for _ in range(rounds)]
    return np.min(took, axis=0).tolist()


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Bars: the fullest rank over the mean; a tick where the costs were measured again."""
    with plotting.style():
        figure = plotting.new_figure(8.0, 2.6)
        axes = figure.add_subplot()
        told = "by the costs it went by, or would have gone by"
        axes.barh(frame["placement"], frame["load_ratio"], 0.6, label=told, **plotting.bar_style(0))
        ends = frame[["load_ratio", "later_ratio"]].max(axis=1)
        for y, (end, ratio) in enumerate(zip(ends, frame["load_ratio"], strict=True)):
            axes.text(end + 0.02 * ends.max(), y, f"{ratio:.3f}", va="center", fontsize=8)
        look = {"marker": "|", "markersize": 14, "markeredgewidth": 2, "linestyle": "none", "color": plotting.INK}
        axes.plot(frame["later_ratio"], frame["placement"], label="by costs measured later", **look)
        axes.axvline(1, color=plotting.INK, linewidth=0.8)
        axes.set(ylim=(len(frame) - 0.5, -0.5), xlim=(0.9, 1.15 * ends.max()))
        told = f"{frame['tables'].iloc[0]} tables on {frame['ranks'].iloc[0]} ranks"
        axes.set_xlabel(f"cost of the fullest rank over the mean, {told}")
        axes.grid(False, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.3), ncols=2)
        axes.set_title(title)
    return figure


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    by = frame.set_index("placement")
    return Said(
        f"{by['tables'].iloc[0]} tables on {by['ranks'].iloc[0]} ranks: the fullest rank is at "
        f"{by.loc[BY_COST, 'load_ratio']:.3f} of the mean where tables are placed longest first by measured cost "
        f"({by.loc[BY_COST, 'later_ratio']:.3f} by costs measured later), at {by.loc[BY_ROWS, 'load_ratio']:.2f} by "
        f"their rows, and at {by.loc[LISTED, 'load_ratio']:.2f} as they are listed."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    by = frame.set_index("placement").loc[BY_COST]
    note = (
        f"{by['tables']} tables on {by['ranks']} ranks, times of a look-up and its gradient; by costs measured later "
    )
    return [answer("ER-P-019", float(by["load_ratio"]), "measured", f"{note}{by['later_ratio']:.3f}")]
