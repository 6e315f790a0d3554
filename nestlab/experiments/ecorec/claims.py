"""Published claims beside what this run obtained: which of those that name the notebook stay open, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer
from nestlab.experiments.nestpipe.claims import NOT_JUDGED
from nestlab.experiments.nestpipe.tables import rounded
from nestlab.experiments.two_tier import claims as two_tier
from nestlab.experiments.two_tier.claims import combine

__all__ = ["NOTEBOOK", "OPEN", "beside", "combine", "expected", "register", "still_open"]

NOTEBOOK = "notebooks/40_ecorec.ipynb"
_SIMULATED = "takes the simulator of a cluster, which is not there yet"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "ER-P-001": _SIMULATED,
    "ER-P-003": _SIMULATED,
    "ER-P-048": _SIMULATED,
    "ER-P-028": "takes both layouts of the baselines on ranks; the ladder has EcoRec's alone",
    "RL-P-015": "takes Criteo's published numbers of ids, and a training at each compression",
    "RL-P-016": "takes trainings on Criteo Kaggle, of which a sample of a thousand rows is here",
    "RL-P-017": "takes trainings on Criteo Kaggle, of which a sample of a thousand rows is here",
}
# What is obtained where the source states no value, and so no unit.
_UNITS = {
    "ER-A-002": "× the peak in one slice",
    "ER-A-003": "× the fullest slice by number",
    "ER-P-016": "prefixes a boundary",
    "ER-P-019": "fullest rank over the mean",
    "ER-P-020": "× the step in order",
    "ER-P-021": "× the step without reordering",
    "ER-P-029": "ms",
    "ER-P-046": "ms a step",
    "ER-P-050": "ms",
    "ER-P-055": "× the table as it is",
    "RL-P-026": "× the prefixes of hashed ids",
}
_ELSE = "no real rows under data_root, or too small a scale"


def beside(answers: Iterable[Answer], judged: bool = True) -> pd.DataFrame:
    """A row a claim: published, obtained with its unit, the verdict (where the run is to be judged), and a note."""
    found = two_tier.beside(answers)
    obtained = [_with_unit(*each) for each in zip(found["claim"], found["obtained"], strict=True)]
    found["obtained"] = pd.Series(obtained, index=found.index, dtype=object)
    return found if judged else found.assign(verdict=NOT_JUDGED)


def _with_unit(claim_id: str, obtained: Any) -> str:
    """A truth as yes or no: whether all parts of the sentence held."""
    if isinstance(obtained, bool | np.bool_):
        return "yes" if obtained else "no"
    unit = _UNITS.get(claim_id) or register.claim(claim_id).unit or ""
    values = obtained if isinstance(obtained, list | tuple) else [obtained]
    return f"{', '.join(map(rounded, values))} {'' if unit == '1' else unit}".strip()


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
