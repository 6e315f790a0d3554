"""The twins beside the real samples; and the distances by which they are compared."""

import json

import numpy as np
import pytest
from scipy.stats import ks_2samp

from nestlab.data import kuairand_synth, twin_report
from nestlab.data.frequency import FrequencyLaw, top_shares
from nestlab.data.kuairand_synth import Twin
from nestlab.data.kuairand_synth_shape import K27_SHAPE, PURE_SHAPE, SHAPES
from nestlab.data.twin_statistics import ks, reuse, tv
from nestlab.errors import UserError

# What is known to differ by more than its tolerance, each with its reason in the report.
_KAGGLE = {f"C{i}: distinct / values" for i in (2, 15, 18)}
_TERABYTE = {f"C{i}: distinct / values" for i in (3, 7, 8, 24)}
KNOWN = {
    "kuairand-pure": {"tabs: TV of shares", "tab 0: zero plays", "exact copies"},
    "criteo-kaggle": _KAGGLE,
    "criteo-1tb": _TERABYTE,
}


@pytest.mark.data
@pytest.mark.parametrize("name", KNOWN)
def test_every_statistic_is_within_its_tolerance_or_has_a_reason(real_data, name):
    report = twin_report.twin_report(name, real_data)
    assert {line.statistic for line in report if not line.within} <= KNOWN[name]
    assert all(line.why not in ("", "not explained") for line in report if not line.within)
    assert len(json.loads(twin_report.to_json(report))) == len(twin_report.table(report)) == len(report) > 50


def test_a_report_wants_a_real_sample(tmp_path):
    with pytest.raises(UserError, match="no standard log"):
        twin_report.twin_report("kuairand-pure", tmp_path)
    with pytest.raises(UserError, match="choose kuairand-pure"):
        twin_report.twin_report("kuairand-27k", tmp_path)


def test_distances_against_scipy_and_by_hand():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 300).round(1), rng.normal(0.3, 1, 200).round(1)
    assert ks(a, b) == pytest.approx(ks_2samp(a, b).statistic)
    assert tv(np.array([1, 1, 2, 2]), np.array([1, 2, 3, 3])) == 0.5
    assert reuse(np.array([1, 1, 2, 3, 2, 3, 4, 4]), 4) == (0.75, pytest.approx(2 / 3))


def test_drawn_counts_follow_the_law_and_sum_to_what_is_wanted():
    law = FrequencyLaw(1.71, 957.0, 0.7)
    assert law.mean == pytest.approx(9.8, abs=0.2)
    assert law.probabilities[0] == pytest.approx(0.50, abs=0.01)
    counts = law.draw_sum(np.random.default_rng(0), 1_000_000)
    assert counts.sum() == 1_000_000 and counts.min() >= 1
    assert (counts == 1).mean() == pytest.approx(law.probabilities[0], abs=0.005)
    assert top_shares(counts, (0.01, 0.1)) == pytest.approx(law.top_shares((0.01, 0.1)), abs=0.02)
    assert PURE_SHAPE.law.with_mean(30.0).mean == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_rows_do_not_depend_on_blocks_and_counts_are_those_of_the_plan(shape, monkeypatch):
    made = []
    for block in (500, 1 << 16):
        monkeypatch.setattr(kuairand_synth, "BLOCK", block)
        twin = Twin(4_000, 3, shape)
        made.append([np.concatenate([rows for rows, _ in twin.pieces(log)]) for log in twin.logs])
    assert all((one == other).all() for one, other in zip(*made, strict=True))
    assert len(twin.plan.exposures) <= 4_000
    shown = np.bincount(made[0][0][:, 1], minlength=twin.n_videos)
    assert (shown >= np.bincount(twin.plan.exposures, minlength=twin.n_videos)).all()


def test_the_last_cluster_tells_more_of_the_next_video_than_popularity():
    """Guessing the ten most shown videos of the last row's cluster, against the ten most shown of all."""
    twin = Twin(30_000, 0, K27_SHAPE)
    rows = np.concatenate([rows for rows, _ in twin.pieces(twin.logs[0])])
    user, video = rows[:, 0], rows[:, 1]
    shown = np.bincount(video, minlength=twin.n_videos)
    cluster_of = twin.plan.cluster_of
    order = np.lexsort((-shown, cluster_of))
    place = np.empty(twin.n_videos, np.int64)
    place[order] = np.arange(twin.n_videos) - np.searchsorted(cluster_of[order], cluster_of[order])
    follows = user[1:] == user[:-1]
    hit = ((cluster_of[video[1:]] == cluster_of[video[:-1]]) & (place[video[1:]] < 10))[follows].mean()
    popular = np.isin(video[1:], np.argsort(-shown)[:10])[follows].mean()
    assert hit > 1.5 * popular
