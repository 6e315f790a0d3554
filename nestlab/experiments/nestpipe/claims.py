"""Published claims beside what this run obtained: which of those that name the notebook stay open, and why."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer
from nestlab.experiments.nestpipe.tables import rounded
from nestlab.experiments.two_tier import claims as two_tier
from nestlab.experiments.two_tier.claims import combine

__all__ = ["NOTEBOOK", "OPEN", "beside", "combine", "expected", "still_open"]

NOTEBOOK = "notebooks/10_nestpipe.ipynb"
_CUDA = "takes an accelerator: there is no pinned memory and no copy to a device on the CPU"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "NP-P-013": _CUDA,
    "NP-P-014": _CUDA,
    "NP-P-061": "takes a sequence model, which is not there yet",
    "NP-P-062": "the tables carry step time, samples a second, speed-up, exposed share and utilisation, and "
    "12_accuracy HR and NDCG; scaling efficiency is not there yet",
}
NOT_JUDGED = "not judged"  # at smoke: a run that is too small to answer anything
# What is obtained where the source states no value, and so no unit.
_UNITS = {
    "NP-P-026": "largest difference of a weight",
    "NP-P-027": "× the rows in time order",
    "NP-P-034": "largest difference of a weight",
    "NP-P-059": "× the plain speed, at least",
    "NP-P-060": "× the plain speed, at least",
    "NP-A-014": "× the rows in time order",
    "RL-P-003": "× the drift without the division",
    "RL-P-004": "mean difference of a weight",
}
_ELSE = "no real rows under data_root, one rank alone, or too small a scale"


def beside(answers: Iterable[Answer], judged: bool = True) -> pd.DataFrame:
    """A row a claim: published, obtained with its unit, the verdict (where the run is to be judged), and a note."""
    found = two_tier.beside(answers)
    obtained = [_with_unit(*each) for each in zip(found["claim"], found["obtained"], strict=True)]
    found["obtained"] = pd.Series(obtained, index=found.index, dtype=object)
    return found if judged else found.assign(verdict=NOT_JUDGED)


def _with_unit(claim_id: str, obtained) -> str:
    """A truth as yes or no: whether all parts of the sentence held."""
    if isinstance(obtained, bool | np.bool_):
        return "yes" if obtained else "no"
    unit = _UNITS.get(claim_id) or register.claim(claim_id).unit or ""
    return f"{rounded(obtained)} {'' if unit == '1' else unit}".strip()


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
