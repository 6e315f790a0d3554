"""The register of published claims: what the sources say, how each claim is answered, and what runs have answered.

Published figures stand in the YAML files here and nowhere else. A verdict is never written by hand: it follows from
the tolerance, fixed before the run, and the value that the newest ok run recorded in its table `claims`.
"""

from __future__ import annotations

from nestlab.experiments.claims.form import Claim, Tolerance
from nestlab.experiments.claims.judge import VERDICTS, verdict
from nestlab.experiments.claims.loader import SOURCES, SYSTEMS, claim, claims, load
from nestlab.experiments.claims.page import claims_page_rows, published
from nestlab.experiments.claims.recorded import Answer, answers, table

__all__ = [
    "SOURCES",
    "SYSTEMS",
    "VERDICTS",
    "Answer",
    "Claim",
    "Tolerance",
    "answers",
    "claim",
    "claims",
    "claims_page_rows",
    "load",
    "published",
    "table",
    "verdict",
]
