"""The article's curriculum: a pipeline that starts shallow and deepens, against one that is deep from the start."""

from __future__ import annotations

import pandas as pd

from nestlab.experiments.nestpipe.links import EMULATED
from nestlab.experiments.tables import Said, answer, chosen


def gain(frame: pd.DataFrame) -> float:
    """Percent more batches a second with the rising depth, by the quickest pass of each: others only slow one down."""
    seconds = frame.groupby("depth")["seconds"].min()
    return float(100 * (seconds["constant"] / seconds["ramp"] - 1))


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, {"depth": "depth", "round": "round", "seconds": "one pass, s"})


def says(frame: pd.DataFrame) -> Said:
    percent = gain(frame)
    word = "gains" if percent > 0 else "loses"
    spread = frame.groupby("depth")["seconds"].agg(lambda s: f"{s.min():.2f} to {s.max():.2f} s")
    return Said(
        f"Over the same batches the rising depth {word} {abs(percent):.1f} % of throughput (constant: "
        f"{spread['constant']}, rising: {spread['ramp']}). Results are the same bits whatever the depth, so "
        f"that there is "
        "nothing else that it could gain."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    return [answer("NP-A-013", gain(frame), EMULATED, "throughput, depth 1 to 5 over the first half of the batches")]
