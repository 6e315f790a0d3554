"""Published claims beside what a notebook's run obtained: which of those that name it stay open, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer, page
from nestlab.experiments.tables import rounded

NOT_JUDGED = "not judged"  # at smoke: a run that is too small to answer anything
_SHOWN = ("claim", "sentence", "published", "obtained", "verdict", "note")


@dataclass(frozen=True)
class Answering:
    """One notebook's part of the register.

    Attributes:
        notebook: its path, as commands in the register have it.
        open: claims that name it and that it leaves open: why.
        units: of what is obtained where the source states no value, and so no unit.
        otherwise: why a claim may stay open that is not in `open`.
        worded: what is obtained is shown as text with its unit; else as it is.
    """

    notebook: str
    open: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = "no real rows under data_root, or too small a scale"
    worded: bool = True

    def beside(self, answers: Iterable[Answer], judged: bool = True) -> pd.DataFrame:
        """A row a claim: published, obtained, the verdict (where the run is to be judged), and a note."""
        given = {answer.claim_id: answer for answer in answers}
        chosen = tuple(register.claim(claim_id) for claim_id in given)
        found = pd.DataFrame(page.rows(chosen, given), columns=list(_SHOWN))
        if self.worded:
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


def combine(found: Iterable[Mapping]) -> list[Answer]:
    """One answer a claim, in the order of the register. Where several parts tried one claim, all must have held.

    Raises:
        ValueError: two parts give a number for one claim.
    """
    by_claim: dict[str, Answer] = {}
    for each in found:
        answer = Answer(**each)
        known = by_claim.get(answer.claim_id)
        by_claim[answer.claim_id] = answer if known is None else _both(known, answer)
    order = [claim.id for claim in register.claims()]
    return sorted(by_claim.values(), key=lambda answer: order.index(answer.claim_id))


def _both(one: Answer, other: Answer) -> Answer:
    if not isinstance(one.obtained, bool) or not isinstance(other.obtained, bool):
        raise ValueError(f"{one.claim_id} is answered twice, with {one.obtained!r} and {other.obtained!r}")
    note = "; ".join(filter(None, (one.note, other.note)))
    return Answer(one.claim_id, one.obtained and other.obtained, one.how, note)


def published(claim_ids: Iterable[str]) -> pd.DataFrame:
    """Figures of the register: what, by which protocol, and what is doubtful about it."""
    rows = []
    for claim_id in claim_ids:
        claim = register.claim(claim_id)
        row = {"claim": claim_id, "what": claim.sentence, "published": register.published(claim)}
        rows.append(row | {"protocol": claim.where, "doubtful": claim.suspect or ""})
    return pd.DataFrame(rows)
