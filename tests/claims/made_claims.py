"""Claims for the tests of their form and verdicts."""

from __future__ import annotations

from typing import Any

from nestlab.experiments.claims import Claim
from nestlab.experiments.claims.form import claim_from


def entry(**changes: Any) -> dict[str, Any]:
    """What YAML gives for a claim that is as it should be, with changes; a change to `...` takes the field away."""
    content = {
        "id": "NP-P-900",
        "sentence": "It is twice as fast.",
        "kind": "number",
        "value": 2.0,
        "unit": "×",
        "answer": "measured",
        "reason": "A clock is enough.",
        "second_source": "none",
        "command": None,
        "tolerance": {"kind": "relative", "number": 0.1, "trend": "side", "neutral": 1},
    }
    return {name: value for name, value in (content | changes).items() if value is not ...}


def made(**changes: Any) -> Claim:
    return claim_from("nestpipe-paper", "NestPipe", entry(**changes))


def ruled(value: Any, **tolerance: Any) -> Claim:
    """A claim of that value (a list is labelled) under that tolerance."""
    changes: dict[str, Any] = {"value": value, "unit": None if value is None else "ms", "tolerance": tolerance}
    if isinstance(value, list):
        changes["labels"] = [f"entry {i}" for i in range(len(value))]
    return made(**changes)
