"""The verdict on a claim, given the value obtained: a pure function of the two."""

from __future__ import annotations

import itertools
import math
from typing import Any

from nestlab.experiments.claims.form import Claim, Tolerance

AGREES, TREND, DIFFERS, NOT_TESTABLE, NOT_RUN = "agrees", "trend agrees", "differs", "not testable", "not run"
VERDICTS = (AGREES, TREND, DIFFERS, NOT_TESTABLE, NOT_RUN)

_MAGNITUDE = math.sqrt(10)  # within half a power of ten either way


def verdict(claim: Claim, obtained: Any) -> str:
    """One of VERDICTS.

    Args:
        obtained: a number, a list in the order of the claim's labels (None where nothing was obtained), a boolean where
            the tolerance is boolean, or None. An entry that the source leaves open is not compared.

    Raises:
        ValueError: the value obtained does not have the form of the claim's.
    """
    if not claim.testable:
        return NOT_TESTABLE
    if _nothing(obtained):
        return NOT_RUN
    tolerance = claim.tolerance
    assert tolerance is not None  # the form asks for one of every testable claim
    if tolerance.kind == "boolean":
        return AGREES if _truth(claim, obtained) == (tolerance.expect == "true") else DIFFERS
    numbers = _numbers(claim, obtained)
    if tolerance.kind == "direction":
        return _direction(claim, tolerance, numbers)
    if all(_within(tolerance, published, got) for published, got in _pairs(claim, numbers)):
        return AGREES
    return TREND if _same_trend(claim, tolerance, numbers) else DIFFERS


def _nothing(obtained: Any) -> bool:
    if isinstance(obtained, list | tuple):
        return all(_nothing(item) for item in obtained)
    return obtained is None or (isinstance(obtained, float) and math.isnan(obtained))


def _truth(claim: Claim, obtained: Any) -> bool:
    if isinstance(obtained, bool) or obtained in (0, 1):
        return bool(obtained)
    raise ValueError(f"{claim.id}: the verdict is on true or false, and {obtained!r} was obtained")


def _numbers(claim: Claim, obtained: Any) -> list[float | None]:
    """What was obtained as a list, of the published list's length where there is one."""
    listed = isinstance(obtained, list | tuple)
    if isinstance(claim.value, tuple):
        if not listed or len(obtained) != len(claim.value):
            raise ValueError(f"{claim.id}: {len(claim.value)} values are wanted ({', '.join(claim.labels)})")
    else:
        course = claim.tolerance is not None and claim.tolerance.expect in ("rising", "falling")
        if listed != course:
            raise ValueError(f"{claim.id}: {'a list is' if course else 'one number is'} wanted, not {obtained!r}")
    items = obtained if listed else [obtained]
    if any(isinstance(item, bool | str) for item in items):
        raise ValueError(f"{claim.id}: {obtained!r} is not made of numbers")
    return [None if _nothing(item) else float(item) for item in items]


def _pairs(claim: Claim, numbers: list[float | None]) -> list[tuple[float | None, float]]:
    """Published and obtained, entry by entry, where the source states one; what is missing agrees with nothing."""
    published = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    if claim.value is None:
        return [(None, math.nan if got is None else got) for got in numbers]
    pairs = zip(published, numbers, strict=True)
    return [(value, math.nan if got is None else got) for value, got in pairs if value is not None]


def _within(tolerance: Tolerance, published: float | None, got: float) -> bool:
    number = tolerance.number
    assert number is not None
    if tolerance.kind == "at_most":
        return got <= number
    if tolerance.kind == "at_least":
        return got >= number
    assert published is not None
    allowed = number if tolerance.kind == "absolute" else number * abs(published)
    # The bound itself belongs to it, whatever the last bit of the subtraction says.
    return abs(got - published) <= allowed * (1 + 1e-9) + 1e-12 * abs(published)


def _direction(claim: Claim, tolerance: Tolerance, numbers: list[float | None]) -> str:
    # Where a figure was published, a direction alone does not confirm it.
    best = AGREES if claim.value is None else TREND
    if tolerance.expect in ("above", "below"):
        sign = 1 if tolerance.expect == "above" else -1
        held = all(sign * (got - tolerance.number) > 0 for _, got in _pairs(claim, numbers))
        return best if held else DIFFERS
    if tolerance.expect == "ranking":
        return best if _same_ranking(_pairs(claim, numbers)) else DIFFERS
    got = [item for item in numbers if item is not None]
    if tolerance.expect == "falling":
        got = [-item for item in got]
    if len(got) > 1 and all(a < b for a, b in itertools.pairwise(got)):
        return best
    return TREND if len(got) > 1 and got[0] < got[-1] else DIFFERS


def _same_trend(claim: Claim, tolerance: Tolerance, numbers: list[float | None]) -> bool:
    if tolerance.trend is None:
        return False
    pairs = _pairs(claim, numbers)
    if tolerance.trend == "ranking":
        return _same_ranking(pairs)
    value = tolerance.number if claim.value is None else claim.value
    assert isinstance(value, int | float)
    got = pairs[0][1]
    if tolerance.trend == "side":
        return (got - tolerance.neutral) * (value - tolerance.neutral) > 0
    return got * value > 0 and 1 / _MAGNITUDE <= got / value <= _MAGNITUDE


def _same_ranking(pairs: list[tuple[float | None, float]]) -> bool:
    """Whether no two published entries change places; a tie obtained is not the published order."""
    return all(a[1] < b[1] for a in pairs for b in pairs if a[0] is not None and b[0] is not None and a[0] < b[0])
