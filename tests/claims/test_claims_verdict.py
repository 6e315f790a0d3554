"""Properties of the verdict: it is pure, honours the bound, and never gets better by a worse value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_claims import made, ruled

from nestlab.experiments.claims import VERDICTS, claims, verdict

numbers = st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3)
RANK = {"agrees": 2, "trend agrees": 1, "differs": 0}


def test_not_run_until_there_is_a_value():
    for claim in claims():
        expected = "not run" if claim.testable else "not testable"
        for nothing in (None, math.nan, [None, None]):
            assert verdict(claim, nothing) == expected


def test_the_published_value_itself_agrees_or_follows_the_trend():
    for claim in claims():
        if not claim.testable or claim.value is None or claim.tolerance.kind == "boolean":
            continue
        if claim.tolerance.number is not None and claim.tolerance.kind.startswith("at_"):
            continue
        value = list(claim.value) if isinstance(claim.value, tuple) else claim.value
        expected = "trend agrees" if claim.tolerance.kind == "direction" else "agrees"
        assert verdict(claim, value) == expected, claim.id


@given(st.sampled_from([c for c in claims() if not c.testable]), st.one_of(st.none(), numbers, st.booleans()))
def test_a_claim_that_cannot_be_tested_never_gets_another_verdict(claim, obtained):
    assert verdict(claim, obtained) == "not testable"


@given(numbers, st.floats(0, 2), st.floats(-3, 3))
def test_relative_holds_within_its_share(value, share, miss):
    claim = ruled(value, kind="relative", number=share)
    got = verdict(claim, value * (1 + miss * share))
    if abs(miss) < 0.999:
        assert got == "agrees"
    elif abs(miss) > 1.001 and share > 1e-3:
        assert got == "differs"


@given(numbers, st.floats(0, 10), numbers, st.sampled_from(["relative", "absolute"]))
def test_a_wider_tolerance_never_makes_it_worse(value, number, obtained, kind):
    narrow, wide = (
        verdict(ruled(value, kind=kind, number=n, trend="magnitude"), obtained) for n in (number, 2 * number)
    )
    assert RANK[narrow] <= RANK[wide]


@given(numbers, numbers, st.floats(-100, 100))
def test_a_trend_is_the_side_of_neutral(value, obtained, neutral):
    claim = ruled(value, kind="absolute", number=0, trend="side", neutral=neutral)
    got = verdict(claim, obtained)
    assert got == ("agrees" if obtained == value else got)
    if got != "agrees":
        assert (got == "trend agrees") == (
            (obtained > neutral) == (value > neutral) and neutral not in (obtained, value)
        )


@given(numbers, st.floats(0.01, 100))
def test_a_magnitude_is_half_a_power_of_ten_either_way_and_of_the_same_sign(value, factor):
    claim = ruled(value, kind="relative", number=0, trend="magnitude")
    near = 1 / math.sqrt(10) <= factor <= math.sqrt(10)
    if abs(abs(math.log10(factor)) - 0.5) > 1e-6:
        assert verdict(claim, value * factor) in (("agrees", "trend agrees") if near else ("differs",))
    assert verdict(claim, -value * factor) == "differs"


@given(st.floats(0.01, 100), st.floats(0, 1000), st.floats(0, 1000))
def test_a_bound_is_monotone(bound, a, b):
    low, high = sorted((a, b))
    most, least = (ruled(bound, kind=kind, number=bound) for kind in ("at_most", "at_least"))
    assert RANK[verdict(most, low)] >= RANK[verdict(most, high)]
    assert RANK[verdict(least, high)] >= RANK[verdict(least, low)]
    assert (verdict(most, a) == "agrees") == (a <= bound) and (verdict(least, a) == "agrees") == (a >= bound)


distinct = st.lists(st.integers(1, 10_000), min_size=2, max_size=6, unique=True)


@given(distinct, st.floats(1.5, 50))
def test_a_ranking_survives_every_increasing_change_and_no_exchange(values, factor):
    claim = ruled([float(v) for v in values], kind="relative", number=0.01, trend="ranking")
    scaled = [v * factor for v in values]
    assert verdict(claim, scaled) == "trend agrees"
    scaled[0], scaled[1] = scaled[1], scaled[0]
    assert verdict(claim, scaled) == "differs"


@given(distinct)
def test_a_tie_is_not_the_published_order(values):
    claim = ruled([float(v) for v in values], kind="direction", expect="ranking")
    assert verdict(claim, [1.0] * len(values)) == "differs"


@given(distinct)
def test_rising_and_falling_mirror_each_other(values):
    rising = ruled(None, kind="direction", expect="rising")
    falling = ruled(None, kind="direction", expect="falling")
    assert verdict(rising, values) == verdict(falling, [-v for v in values])
    assert verdict(rising, sorted(values)) == "agrees" and verdict(falling, sorted(values)) == "differs"
    assert (verdict(rising, values) != "differs") == (values[0] < values[-1])


@given(numbers, numbers)
def test_above_and_below_exclude_each_other(number, obtained):
    above, below = (ruled(None, kind="direction", expect=e, number=number) for e in ("above", "below"))
    outcomes = [verdict(above, obtained), verdict(below, obtained)]
    assert sorted(outcomes) == (["differs", "differs"] if number == obtained else ["agrees", "differs"])


def test_a_direction_alone_does_not_confirm_a_figure():
    assert verdict(ruled(3.0, kind="direction", expect="above", number=1), 3.0) == "trend agrees"


def test_truth():
    claim = ruled(None, kind="boolean", expect="true")
    assert [verdict(claim, value) for value in (True, 1, False, 0)] == ["agrees", "agrees", "differs", "differs"]
    with pytest.raises(ValueError, match="NP-P-900"):
        verdict(claim, 0.5)


def test_what_the_source_leaves_open_is_not_compared_and_what_is_missing_does_not_agree():
    claim = ruled([1.0, None, 3.0], kind="relative", number=0.1, trend="ranking")
    assert verdict(claim, [1.0, 99.0, 3.0]) == "agrees"
    assert verdict(claim, [1.0, 99.0, None]) == "differs"


@pytest.mark.parametrize("obtained", ["fast", True, [1.0, 2.0]])
def test_a_value_of_another_form_is_refused(obtained):
    with pytest.raises(ValueError, match="NP-P-900"):
        verdict(made(), obtained)


@given(numbers, st.one_of(numbers, st.just(math.inf), st.just(-math.inf)))
def test_every_number_has_a_verdict(value, obtained):
    assert verdict(ruled(value, kind="relative", number=0.1, trend="magnitude"), obtained) in VERDICTS
