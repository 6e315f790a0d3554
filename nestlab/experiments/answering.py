"""Published claims beside what a notebook's run obtained: which of those that name it stay open, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer
from nestlab.experiments.nestpipe.tables import rounded
from nestlab.experiments.two_tier import claims as two_tier
from nestlab.experiments.two_tier.claims import combine

__all__ = ["NOT_JUDGED", "Answering", "combine"]

NOT_JUDGED = "not judged"  # at smoke: a run that is too small to answer anything


@dataclass(frozen=True)
class Answering:
    """One notebook's part of the register.

    Attributes:
        notebook: its path, as commands in the register have it.
        open: claims that name it and that it leaves open: why.
        units: of what is obtained where the source states no value, and so no unit.
        otherwise: why a claim may stay open that is not in `open`.
    """

    notebook: str
    open: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = "no real rows under data_root, or too small a scale"

    def beside(self, answers: Iterable[Answer], judged: bool = True) -> pd.DataFrame:
        """A row a claim: published, obtained with its unit, the verdict (where the run is to be judged), and a note."""
        found = two_tier.beside(answers)
        obtained = [self._with_unit(*each) for each in zip(found["claim"], found["obtained"], strict=True)]
        found["obtained"] = pd.Series(obtained, index=found.index, dtype=object)
        return found if judged else found.assign(verdict=NOT_JUDGED)

    def expected(self) -> list[str]:
        """The ids of all claims whose command names the notebook."""
        return [claim.id for claim in register.claims() if claim.command and self.notebook in claim.command]

    def still_open(self, answers: Iterable[Answer]) -> pd.DataFrame:
        """The claims that name the notebook and got no answer, each with the reason."""
        given = {answer.claim_id for answer in answers}
        rows = [
            {"claim": i, "sentence": register.claim(i).sentence, "reason": self.open.get(i, self.otherwise)}
            for i in self.expected()
            if i not in given
        ]
        return pd.DataFrame(rows, columns=["claim", "sentence", "reason"])

    def _with_unit(self, claim_id: str, obtained: Any) -> str:
        """A truth as yes or no: whether all parts of the sentence held."""
        if isinstance(obtained, bool | np.bool_):
            return "yes" if obtained else "no"
        unit = self.units.get(claim_id) or register.claim(claim_id).unit or ""
        values = obtained if isinstance(obtained, list | tuple | np.ndarray) else [obtained]
        return f"{', '.join(map(rounded, values))} {'' if unit == '1' else unit}".strip()
