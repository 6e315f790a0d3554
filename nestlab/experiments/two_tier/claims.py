"""Published claims beside what this run obtained: the run's table `claims`, and what the notebook shows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer, page

NOTEBOOK = "notebooks/30_two_tier_cache.ipynb"
# Of the claims that name the notebook, those that it leaves open, and why.
OPEN = {
    "RS-C-021": "takes several ranks: with one, nothing is exchanged",
    "RS-C-022": "takes several ranks: with one, nothing is sharded",
}
_SHOWN = ("claim", "sentence", "published", "obtained", "verdict", "note")


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


def expected() -> list[str]:
    """The ids of all claims whose command names the notebook."""
    return [claim.id for claim in register.claims() if claim.command and NOTEBOOK in claim.command]


def beside(answers: Iterable[Answer]) -> pd.DataFrame:
    """A row a claim: what was published and what was obtained, the verdict, and what was looked at."""
    given = {answer.claim_id: answer for answer in answers}
    chosen = tuple(register.claim(claim_id) for claim_id in given)
    return pd.DataFrame(page.rows(chosen, given), columns=list(_SHOWN))


def still_open(answers: Iterable[Answer]) -> pd.DataFrame:
    """The claims that name the notebook and got no answer, each with the reason."""
    given = {answer.claim_id for answer in answers}
    rows = []
    for claim_id in expected():
        if claim_id not in given:
            reason = OPEN.get(claim_id, "no real rows under data_root, or too small a scale")
            rows.append({"claim": claim_id, "sentence": register.claim(claim_id).sentence, "reason": reason})
    return pd.DataFrame(rows, columns=["claim", "sentence", "reason"])
