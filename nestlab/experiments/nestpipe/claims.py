"""Published claims beside what this run obtained: which of those that name the notebook stay open, and why."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer
from nestlab.experiments.two_tier.claims import beside, combine

__all__ = ["NOTEBOOK", "OPEN", "beside", "combine", "expected", "still_open"]

NOTEBOOK = "notebooks/10_nestpipe.ipynb"
_ACCURACY = "takes the accuracy study, with ranking metrics, which is not part of this notebook yet"
_CUDA = "takes an accelerator: there is no pinned memory and no copy to a device on the CPU"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "NP-P-006": _ACCURACY,
    "NP-P-013": _CUDA,
    "NP-P-014": _CUDA,
    "NP-P-055": _ACCURACY,
    "NP-P-056": _ACCURACY,
    "NP-P-061": "takes a sequence model, which is not there yet",
    "NP-P-062": "the tables carry step time, samples a second, speed-up, exposed share and utilisation; HR, NDCG and "
    "scaling efficiency are not there yet",
}
_ELSE = "no real rows under data_root, one rank alone, or too small a scale"


def expected() -> list[str]:
    """The ids of all claims whose command names the notebook."""
    return [claim.id for claim in register.claims() if claim.command and NOTEBOOK in claim.command]


def still_open(answers: Iterable[Answer]) -> pd.DataFrame:
    """The claims that name the notebook and got no answer, each with the reason."""
    given = {answer.claim_id for answer in answers}
    rows = [
        {"claim": i, "sentence": register.claim(i).sentence, "reason": OPEN.get(i, _ELSE)}
        for i in expected()
        if i not in given
    ]
    return pd.DataFrame(rows, columns=["claim", "sentence", "reason"])
