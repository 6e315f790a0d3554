"""What chance does, against many samples of a known law; distances by hand and against scipy."""

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score

from nestlab.data import twin_chance as chance
from nestlab.data.skew import draw_with_top
from nestlab.data.twin_criteo import _auc
from nestlab.data.twin_kuairand import by_video, copies
from nestlab.data.twin_statistics import Distribution, _ks, _tv, compare, ks, rate, reuse, tv

SAMPLES = 300


def samples(draw):
    return [draw(np.random.default_rng([7, i])) for i in range(SAMPLES)]


def counts(ids):
    return np.unique(ids, return_counts=True)[1]


@pytest.mark.parametrize("cardinality, top, s", [(100_000, 0.05, 0.9), (1_000, 0.3, 1.2), (30, 0.5, 1.5)])
def test_the_error_of_distinct_ids_is_their_spread(cardinality, top, s):
    """Between 0.8 and 1.5 of it; the cut of the series leaves no less. K1 alone is up to 2.4 times as much."""
    drawn = samples(lambda rng: counts(draw_with_top(rng, 1_000, cardinality, top, s)))
    spread = np.std([len(of) / 1_000 for of in drawn])
    told = np.mean([chance.distinct_error(of, 1_000) for of in drawn])
    assert 0.8 * spread < told < 1.5 * spread


def test_distances_of_two_samples_of_one_law_stay_below_their_noise():
    """Of 300 pairs at most 0.27 % are expected beyond it: one."""
    pairs = samples(lambda rng: (rng.normal(size=300), rng.normal(size=500)))
    ks_beyond = [ks(a, b) > chance.ks_noise(300, 500) for a, b in pairs]
    tabs = np.array([0.75, 0.12, 0.07, 0.03, 0.03])
    tv_beyond = []
    for i in range(SAMPLES):
        a, b = (Distribution(np.random.default_rng([8, i, k]).choice(5, 400, p=tabs), 400, _tv) for k in (0, 1))
        distance, noise = _tv(a, b)
        tv_beyond.append(distance > noise)
    assert sum(ks_beyond) <= 3 and sum(tv_beyond) <= 3
    assert np.mean([ks(a, b) > 0.6 * chance.ks_noise(300, 500) for a, b in pairs]) > 0.05


def test_errors_of_top_shares_and_of_the_auc():
    drawn = samples(lambda rng: rng.geometric(0.05, 500))
    spread = np.std([np.sort(of)[-50:].sum() / of.sum() for of in drawn])
    assert chance.top_share_errors(drawn[0], (0.1,))[0] == pytest.approx(spread, rel=0.5)
    assert chance.top_share_errors(drawn[0], (0.1,)) == chance.top_share_errors(drawn[0], (0.1,))
    scores = samples(
        lambda rng: (np.repeat((0, 1), (150, 50)), np.append(rng.normal(0, 1, 150), rng.normal(1.2, 1, 50)))
    )
    found = [_auc(*of) for of in scores]
    assert found[:3] == pytest.approx([roc_auc_score(*of) for of in scores[:3]])
    assert chance.auc_error(np.mean(found), 50, 150) == pytest.approx(np.std(found), rel=0.25)


def test_the_error_of_a_rate_by_video_is_more_than_by_row():
    def draw(rng):
        shown = rng.geometric(0.1, 300)
        return np.repeat(rng.random(300) < 0.1, shown), np.repeat(np.arange(300), shown)

    drawn = [by_video("", *of) for of in samples(draw)]
    assert np.mean([line.error for line in drawn]) == pytest.approx(np.std([line.value for line in drawn]), rel=0.25)
    assert chance.effective(np.array([4, 4, 4])) == 3
    assert chance.effective(np.array([1, 9])) == pytest.approx(100 / 82)


@pytest.mark.parametrize("n", [1_000, 200_000])
def test_nothing_never_passes_for_a_rate_that_is_seen_often(n):
    for seen in (13, 50, n // 2, n):
        real, none = rate("", np.arange(n) < seen, 0.10), rate("", np.zeros(n, bool), 0.10)
        assert not compare(real, none).within
    few = rate("", np.arange(n) < 3, 0.10)
    assert compare(few, none).within


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_a_rate_and_its_complement_are_judged_alike(p):
    hits, other = np.arange(1_000) < 1_000 * p, np.arange(1_000) < 1_070 * p
    one = compare(rate("", hits, 0.05), rate("", other, 0.05))
    two = compare(rate("", ~hits, 0.05), rate("", ~other, 0.05))
    assert one.tolerance == pytest.approx(two.tolerance) and one.within == two.within


def test_distances_against_scipy_and_by_hand():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 300).round(1), rng.normal(0.3, 1, 200).round(1)
    assert ks(a, b) == pytest.approx(ks_2samp(a, b).statistic)
    assert tv(np.array([1, 1, 2, 2]), np.array([1, 2, 3, 3])) == 0.5
    unique, again = reuse(np.array([1, 1, 2, 3, 2, 3, 4, 4]), 4)
    assert unique.tolist() == [0.75, 0.75] and again.tolist() == [0.0, pytest.approx(2 / 3)]
    assert copies([np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5])]).tolist() == [False, False, False, True]


def test_nothing_beside_something_is_as_far_as_can_be():
    some, none = (Distribution(np.zeros(n), max(1, n), _ks) for n in (5, 0))
    assert _ks(some, none) == (1.0, 0.0) and _ks(none, none) == (0.0, 0.0)
