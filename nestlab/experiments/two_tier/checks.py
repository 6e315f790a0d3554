"""Claims that are true or false: tried one by one, each by a check of its own."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier import planner_checks, table_checks
from nestlab.experiments.two_tier.one_pass import open_stream
from nestlab.experiments.two_tier.settings import Settings

CHECKS = planner_checks.CHECKS | table_checks.CHECKS
_STEPS = 24


def measure(settings: Settings) -> pd.DataFrame:
    """A row a check: claim_id, check (what is tried), holds, found (what was looked at), how."""
    stream = open_stream(replace(settings, steps=min(settings.steps, _STEPS)))
    rows = []
    for claim_id, check in CHECKS.items():
        holds, found = check(settings, stream)
        tried = check.__doc__.split(": ", 1)[1].split("\n", 1)[0]
        rows.append({"claim_id": claim_id, "check": tried, "holds": bool(holds), "found": found, "how": "measured"})
    return pd.DataFrame(rows)


def answers(frame: pd.DataFrame) -> list[dict]:
    """One answer a check."""
    return [answer(row["claim_id"], row["holds"], row["how"], row["found"]) for row in frame.to_dict("records")]
