"""The same links, longer histories: what the two pipelines bring to sequence models.

Predicted before the first run: attention grows with the square of a window and rows only with the window, so that
there is less to hide the longer it is, and the gain shrinks towards 1; FuXi-α computes more an event and gains less.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from nestlab.experiments.nestpipe import robustness
from nestlab.experiments.nestpipe.links import EMULATED
from nestlab.experiments.tables import Said, answer

VARIED = {"hstu": "HSTU, events of a window at most", "fuxi": "FuXi-α, events of a window at most"}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a model: steps of the plain loop and of NestPipe, the ratio above."""
    return robustness.plot(frame, title, VARIED)


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    found = robustness.digest(frame, VARIED)
    found.insert(2, "events of a window, mean", robustness.derived(frame)["events"])
    return found


def says(frame: pd.DataFrame) -> Said:
    found = robustness.derived(frame)
    means = ", ".join(f"{row.value}: {row.events:,.0f}" for row in found[found["varied"] == "hstu"].itertuples())
    return Said(
        f"On {frame['data'].iloc[0]}, where a window of at most so many events has on average ({means}). "
        f"{robustness.says(frame, VARIED)}"
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-P-061: the least speed over the plain loop."""
    found = robustness.derived(frame)
    each = ", ".join(f"{row.varied} {row.value}: {row.speedup:.2f}" for row in found.itertuples())
    return [answer("NP-P-061", float(found["speedup"].min()), EMULATED, f"{frame['data'].iloc[0]}; {each}")]
