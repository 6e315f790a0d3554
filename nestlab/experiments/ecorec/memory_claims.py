"""What `memory` answers: table 1 of the source, and the share of memory that slices save."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nestlab.embedding.tensor_train.shape import suggest
from nestlab.experiments import claims as register
from nestlab.experiments.ecorec.memory import (
    COMPUTED,
    DENSE,
    DIM,
    FORWARD,
    MEASURED,
    RANK,
    ROWS,
    SCALED,
    TORCH,
    WHOLE,
    saved,
    table_1,
)
from nestlab.experiments.tables import answer, share


def answers(frame: pd.DataFrame) -> list[dict]:
    """Table 1 and the saving of memory, by the slices that the source's experiments have."""
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
    forward = frame[frame["what"] == FORWARD]
    note = f"ms, {forward['indices'].iloc[0]:,} and {forward['indices'].iloc[1]:,} ids, in chunks"
    yield answer("ER-P-050", forward["total_ms"].tolist(), MEASURED, note)
    last = table_1()[-1]
    over = float(whole.loc[last, "peak_bytes"] / dense.loc[ROWS, "peak_bytes"])
    yield answer("ER-P-055", over, COMPUTED, f"{last:,} ids in one product, over the whole table as it is")
