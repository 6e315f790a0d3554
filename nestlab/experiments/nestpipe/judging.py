"""What of a claim's sentence the rows of the ablation show, part by part."""

from __future__ import annotations

import pandas as pd

from nestlab.experiments.nestpipe import facts
from nestlab.experiments.nestpipe.cases import NESTPIPE
from nestlab.experiments.tables import share
from nestlab.techniques import preset


def sent(row: pd.Series) -> float:
    return row["sent_rows_bytes"] + row["sent_grads_bytes"]


def nested(bare: pd.DataFrame) -> bool:
    """Rows lie with the ranks, and batches and micro-batches are pipelined at once."""
    full = bare.loc[NESTPIPE]
    return bool((bare["peak_tables_bytes"] > 0).all() and full["in_flight"] > 1 and full["parts"] > 1)


def in_stages(row: pd.Series) -> int:
    """Batches in flight, no more than the schedule has at different stages."""
    return min(int(row["in_flight"]), len(set(facts.look_ahead(preset("nestpipe")).values())))


def overlaps(row: pd.Series) -> bool:
    """Most windows both ways, and half of the time that the first and last exchange leave to be hidden."""
    return bool(row["windows_that_overlap"] > 0.5 and row["overlapped_share"] >= 0.5 * (1 - 1 / row["parts"]))


def exchange_ms(row: pd.Series) -> float:
    return row["emb_exchange_ms"] + row["grad_exchange_ms"]


def exposed_counts(none: pd.Series, fwp: pd.Series, dbp: pd.Series) -> bool:
    """The absolute time stays, half of it at most is exposed, and the step shortens: of exchange and of look-up."""
    exchange = exchange_ms(fwp) >= 0.75 * exchange_ms(none) and fwp["exposed_rows_ms"] < 0.5 * exchange_ms(fwp)
    look_up = dbp["lookup_ms"] >= 0.75 * none["lookup_ms"] and dbp["exposed_lookup_ms"] < 0.5 * dbp["lookup_ms"]
    return bool(exchange and look_up and min(fwp["speedup"], dbp["speedup"]) > 1)


def exposed_note(none: pd.Series, fwp: pd.Series, dbp: pd.Series) -> str:
    exposed, hidden = fwp["exposed_rows_ms"] / exchange_ms(fwp), dbp["exposed_lookup_ms"] / dbp["lookup_ms"]
    return (
        f"exchange {exchange_ms(none):.3g} → {exchange_ms(fwp):.3g} ms with FWP (N = {fwp['parts']:.0f}), "
        f"{share(exposed)} exposed, step {fwp['speedup']:.2f} times as fast; look-up {none['lookup_ms']:.3g} → "
        f"{dbp['lookup_ms']:.3g} ms with DBP, {share(hidden)} exposed, step {dbp['speedup']:.2f} times as fast"
    )


def owner_deduplicates(row: pd.Series) -> bool:
    return bool(row["fetched_keys"] <= row["owned_keys"] <= row["unique_keys"])


def owner_note(row: pd.Series) -> str:
    return (
        f"a rank and step: {row['unique_keys']:,.0f} keys asked for, {row['owned_keys']:,.0f} unique at the owner, of "
        f"which {row['fetched_keys']:,.0f} read from host memory, each once"
    )
