"""What saved multiplications came to in time: the operations that the formulas save, beside the time that was saved."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.experiments.ecorec.kernels_timed import NAMES, OVER_BATCH
from nestlab.experiments.tables import Said

_KINDS = {"one product an id": "one product an id", "one matrix a slice": "one matrix a slice of the second core"}


def saved_came_to(frame: pd.DataFrame) -> Said:
    """Geometric means over the batches, of all kinds of ids: time over EcoRec's, of it what operations explain, and
    what is left, which is the rate at which each multiplies."""
    rows = frame[frame["sweep"] == OVER_BATCH]
    ours = _mean(rows.loc[rows["scheme"] == "ecorec", "gflops"])
    lines = []
    for name in ("tt_rec", "el_rec"):
        theirs = rows[rows["scheme"] == name]
        time, needs = _mean(theirs["speedup"]), _mean(theirs["needs"])
        variants = ", ".join(f"{_KINDS[v]} at {n}" for v, n in theirs["variant"].value_counts().items())
        lines.append(
            f"* {NAMES[name]} takes {time:.2f} times EcoRec's time. It does {needs:.2f} times the operations; the "
            f"other {time / needs:.2f} times are the rate, {_mean(theirs['gflops']):.3g} GFLOP/s against {ours:.3g}, "
            f"sorting counted as time. Of two ways to multiply the quicker was taken: {variants} of {len(theirs)} "
            "batches."
        )
    return Said("\n".join(["Over all batches and kinds of ids (geometric means):", "", *lines]))


def _mean(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))
