"""What a published claim is: its fields, the values they may take, and the tolerance that decides its verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

KINDS = ("mechanism", "number", "parameter", "limit", "outlook")
ANSWERS = ("measured", "emulated link", "simulated cluster", "computed", "not testable", "out of scope")
TESTABLE = ANSWERS[:4]
NONE = "none"
TOLERANCES = ("relative", "absolute", "at_most", "at_least", "direction", "boolean")
TRENDS = ("side", "ranking", "magnitude")
EXPECTATIONS = ("above", "below", "rising", "falling", "ranking", "true", "false")

_ID = re.compile(r"[A-Z]{2}-[A-Z]-\d{3}")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_COMMAND = re.compile(r"nestlab (run notebooks/\w+\.ipynb( -p \w+=\S+)*|bench \w+|train .+)")
_BY_ORDER = ("rising", "falling", "ranking")

Value = float | tuple[float | None, ...] | None


class FormError(ValueError):
    """A field that is not as it must be; the loader puts the file and the claim before it."""

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field}: {fault}")
        self.field = field


@dataclass(frozen=True)
class Tolerance:
    """How far an obtained value may lie from the published one, fixed before any run.

    `relative`, `absolute`: within `number` (a share, or the value's own unit). `at_most`, `at_least`: the bound
    `number`. `direction`: `expect` above or below `number`, or, of a list, rising, falling or in the published ranking.
    `boolean`: `expect` true or false. `trend` is what still counts when the value itself is missed: the same `side` of
    `neutral` (1 for a speed-up, 0 for a change), the same `ranking` of a list, or the same `magnitude`.
    """

    kind: str
    number: float | None = None
    expect: str | None = None
    trend: str | None = None
    neutral: float | None = None

    def __post_init__(self) -> None:
        _one_of("tolerance.kind", self.kind, TOLERANCES)
        _check_needs(self)
        for name in ("number", "neutral"):
            value = getattr(self, name)
            _require(value is None or _is_number(value), f"tolerance.{name}", f"{value!r} is not a number")
        if self.kind in ("relative", "absolute"):
            _require(self.number >= 0, "tolerance.number", "is negative")
        if self.trend is not None:
            _one_of("tolerance.trend", self.trend, TRENDS)
        _require((self.trend == "side") == (self.neutral is not None), "tolerance.neutral", "goes with trend: side")


@dataclass(frozen=True)
class Claim:
    """One published sentence or figure.

    `error` says what is wrong in the source and which reading was chosen; `suspect` what no other source confirms, or
    what the source leaves open. `labels` name the entries of a list.
    """

    id: str
    source: str
    system: str
    sentence: str
    kind: str
    answer: str
    reason: str
    second_source: str
    value: Value = None
    unit: str | None = None
    labels: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    command: str | None = None
    where: str | None = None
    keywords_zh: str | None = None
    error: str | None = None
    suspect: str | None = None

    def __post_init__(self) -> None:
        _require(isinstance(self.id, str) and bool(_ID.fullmatch(self.id)), "id", f"{self.id!r} is not like NP-P-012")
        _check_texts(self)
        _one_of("kind", self.kind, KINDS)
        _one_of("answer", self.answer, ANSWERS)
        _check_value(self)
        _check_answer(self)

    @property
    def testable(self) -> bool:
        return self.answer in TESTABLE

    @property
    def marked(self) -> bool:
        """Whether the source is wrong, contradicts itself, or stands alone here."""
        return self.error is not None or self.suspect is not None


def claim_from(source: str, system: str, entry: Any) -> Claim:
    """A claim out of what YAML gives.

    Raises:
        FormError: a field is unknown, absent or not as it must be.
    """
    _require(isinstance(entry, Mapping), "claim", "is not a mapping")
    known = {field.name for field in fields(Claim)} - {"source", "system"}
    _no_others("claim", entry, known)
    for name in ("id", "sentence", "kind", "value", "answer", "reason", "second_source", "command", "tolerance"):
        _require(name in entry, name, "is absent")
    content = dict(entry)
    if isinstance(content["value"], list):
        content["value"] = tuple(content["value"])
    if "labels" in content:
        _require(isinstance(content["labels"], list), "labels", "is not a list")
        content["labels"] = tuple(map(str, content["labels"]))
    content["tolerance"] = _tolerance_from(content["tolerance"])
    return Claim(source=source, system=system, **content)


def _tolerance_from(entry: Any) -> Tolerance | None:
    if entry is None:
        return None
    _require(isinstance(entry, Mapping), "tolerance", "is not a mapping")
    _no_others("tolerance", entry, {field.name for field in fields(Tolerance)})
    _require("kind" in entry, "tolerance.kind", "is absent")
    return Tolerance(**entry)


def _check_needs(tolerance: Tolerance) -> None:
    """A number where one is compared with, an expectation where there is no number to compare."""
    kind, expect = tolerance.kind, tolerance.expect
    if kind == "direction":
        _one_of("tolerance.expect", expect, EXPECTATIONS[:5])
    elif kind == "boolean":
        _one_of("tolerance.expect", expect, EXPECTATIONS[5:])
    else:
        _require(expect is None, "tolerance.expect", f"does not go with kind: {kind}")
    needed = kind != "boolean" and expect not in _BY_ORDER
    _require(
        (tolerance.number is not None) == needed, "tolerance.number", "is needed" if needed else "is not used here"
    )


def _check_texts(claim: Claim) -> None:
    for name in ("source", "system", "sentence", "reason", "second_source"):
        text = getattr(claim, name)
        _require(isinstance(text, str) and bool(text.strip()), name, "is empty")
    for name in ("unit", "where", "keywords_zh", "error", "suspect", "command"):
        text = getattr(claim, name)
        _require(text is None or (isinstance(text, str) and bool(text.strip())), name, f"{text!r} is not a text")
    article = claim.source.endswith("-article")
    if article:
        _require(
            bool(_CHINESE.search(claim.keywords_zh or "")), "keywords_zh", "an article's claim names its key words"
        )
    _require(not _CHINESE.search(claim.sentence), "sentence", "is to be in English")
    _require(claim.second_source != claim.source, "second_source", "is the source itself")
    if claim.command is not None:
        _require(bool(_COMMAND.fullmatch(claim.command)), "command", f"'{claim.command}' is no nestlab command")


def _check_value(claim: Claim) -> None:
    value = claim.value
    if isinstance(value, tuple):
        _require(len(value) > 1, "value", "a list of one entry is a number")
        fits = all(item is None or _is_number(item) for item in value) and any(item is not None for item in value)
        _require(fits, "value", "a list holds numbers, or null where the source is silent")
        _require(len(claim.labels) == len(value), "labels", f"{len(claim.labels)} for {len(value)} values")
    else:
        _require(value is None or _is_number(value), "value", f"{value!r} is neither number, list nor null")
        _require(not claim.labels, "labels", "name the entries of a list, and there is none")
    _require((value is None) == (claim.unit is None), "unit", "goes with a value (1 for a pure number)")


def _check_answer(claim: Claim) -> None:
    tolerance = claim.tolerance
    if not claim.testable:
        _require(tolerance is None, "tolerance", f"there is no verdict where the answer is '{claim.answer}'")
        _require(claim.command is None, "command", f"nothing answers a claim that is '{claim.answer}'")
        return
    if tolerance is None:
        raise FormError("tolerance", "is needed: the verdict's tolerance is fixed before the run")
    if tolerance.kind in ("relative", "absolute"):
        _require(
            claim.value is not None, "tolerance.kind", f"'{tolerance.kind}' compares with a value, and there is none"
        )
    if tolerance.trend == "ranking" or tolerance.expect == "ranking":
        _require(isinstance(claim.value, tuple), "tolerance", "a ranking is that of a list")
    if tolerance.trend in ("side", "magnitude"):
        _require(not isinstance(claim.value, tuple), "tolerance.trend", f"'{tolerance.trend}' is that of one number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    _require(isinstance(value, str) and value in allowed, field, f"{value!r} is not one of {', '.join(allowed)}")


def _no_others(field: str, entry: Mapping, known: set[str]) -> None:
    if others := sorted(str(name) for name in entry if name not in known):
        raise FormError(field, f"has unknown fields: {', '.join(others)}")


def _require(holds: bool, field: str, fault: str) -> None:
    if not holds:
        raise FormError(field, fault)
