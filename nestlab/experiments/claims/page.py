"""The register beside the answers, as a table: what `nestlab claims` prints and the results page shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.experiments.claims import loader
from nestlab.experiments.claims.form import Claim
from nestlab.experiments.claims.judge import verdict
from nestlab.experiments.claims.recorded import Answer, answers

if TYPE_CHECKING:
    import pandas

_BOUNDS = {"at_most": "≤ ", "at_least": "≥ "}


def claims_page_rows(results_dir: str | Path = "results", source: str | None = None) -> pandas.DataFrame:
    """One row a claim: what was published, what was obtained and how, the verdict, and the run it comes from."""
    import pandas

    return pandas.DataFrame(rows(loader.chosen(source), answers(results_dir)))


def rows(chosen: tuple[Claim, ...], found: Mapping[str, Answer]) -> list[dict[str, Any]]:
    """The same as plain values, of some claims and given answers."""
    return [_row(claim, found.get(claim.id)) for claim in chosen]


def published(claim: Claim) -> str:
    """The published value with its unit, as text; empty where the claim states none."""
    if claim.value is None:
        return ""
    if isinstance(claim.value, tuple):
        named = zip(claim.labels, claim.value, strict=True)
        text = ", ".join(f"{label} {_number(value)}" for label, value in named)
    else:
        tolerance = claim.tolerance
        bounded = tolerance is not None and tolerance.number == claim.value
        text = (_BOUNDS.get(tolerance.kind, "") if bounded else "") + _number(claim.value)
    return text if claim.unit in (None, "1") else f"{text} {claim.unit}"


def _row(claim: Claim, answer: Answer | None) -> dict[str, Any]:
    obtained = None if answer is None else answer.obtained
    return {
        "claim": claim.id,
        "source": claim.source,
        "system": claim.system,
        "sentence": claim.sentence,
        "keywords_zh": claim.keywords_zh,
        "kind": claim.kind,
        "where": claim.where,
        "published": published(claim),
        "obtained": obtained,
        "how": None if answer is None else answer.how,
        "verdict": verdict(claim, obtained),
        "run": None if answer is None else answer.run,
        "note": None if answer is None else answer.note,
        "answer": claim.answer,
        "reason": claim.reason,
        "second_source": claim.second_source,
        "command": claim.command,
        "error": claim.error,
        "suspect": claim.suspect,
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.10g}"
