"""The small figures of the article, each from what the other parts measured."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from nestlab.experiments.nestpipe import curriculum
from nestlab.experiments.nestpipe.ablation import by_case
from nestlab.experiments.nestpipe.cases import BOTH, NESTPIPE, NONE
from nestlab.experiments.nestpipe.links import EMULATED, linked, loopback
from nestlab.experiments.nestpipe.restart import EVERY
from nestlab.experiments.tables import answer

_COLUMNS = ("what", "obtained", "unit", "how", "note")


def table(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row a figure: what, obtained, unit, how, note."""
    found = by_case(frames["ablation"])
    rows = [*_copy(loopback(found)), *_sent(loopback(found)), *_idle(linked(found))]
    rows += [*_snapshot(frames["restart"].iloc[0]), *_keys(frames["keys"].iloc[0])]
    rows.append(("throughput gained by a rising depth", curriculum.gain(frames["curriculum"]), "%", EMULATED, ""))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _copy(bare: pd.DataFrame):
    row = bare.loc[NESTPIPE]
    share = row["copied_keys"] / row["owned_keys"]
    yield "copy between the two buffers, time", row["commit_ms"], "ms a step", "measured", "in plain memory, one thread"
    yield "copy between the two buffers, size", row["copied_bytes"] / 1e3, "kB a step", "measured", "weights and states"
    yield "keys that the batch before has too", 100 * share, "% of a batch's", "measured", "these are what is copied"


def _sent(bare: pd.DataFrame):
    for case, name in ((BOTH, "none"), ("DBP + FWP + kmeans", "kmeans"), (NESTPIPE, "greedy")):
        row = bare.loc[case]
        note = f"{row['received_rows']:,.0f} rows for {row['unique_keys']:,.0f} unique keys, N = {row['parts']:.0f}"
        over = row["received_rows"] / row["unique_keys"]
        yield f"rows received over the least, clustering {name}", over, "×", "measured", note


def _idle(under: pd.DataFrame):
    for case, when in ((NONE, "before"), (NESTPIPE, "after")):
        yield f"idle share of the compute lane, {when}", 100 * under.loc[case, "idle_share"], "%", EMULATED, case


def _snapshot(row: pd.Series):
    a_step = row["snapshot_ms"] / EVERY
    note = f"{100 * a_step / row['step_ms']:.3g} % of a step of {row['step_ms']:.3g} ms, small model in float64"
    yield f"snapshot every {EVERY} steps", a_step, "ms a step", "measured", note
    yield "its size", row["snapshot_bytes"] / 1e6, "MB", "measured", "the median one: what changed since the one before"


def _keys(row: pd.Series):
    note = f"a row alone has {row['bytes_a_row']:.0f} bytes"
    yield "key routing", row["bytes_a_key"], "bytes a key", "measured", note


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-P-015: keys alone travel in key routing."""
    row = frame.iloc[0]
    if not row["keys_bytes"] > 0:
        return []
    note = f"{row['bytes_a_key']:.3g} bytes a key on the channel of routing; a row alone has {row['bytes_a_row']:.0f}"
    return [answer("NP-P-015", bool(row["bytes_a_key"] < row["bytes_a_row"]), "measured", note)]
