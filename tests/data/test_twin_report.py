"""The twins beside the real samples and beside published figures."""

import dataclasses
import json

import numpy as np
import pytest

from nestlab.data import kuairand_synth, synthetic, twin_published, twin_report
from nestlab.data.criteo_twin_shape import KAGGLE_SHAPE
from nestlab.data.frequency import FrequencyLaw, top_shares
from nestlab.data.kuairand_files import PURE, RANDOM
from nestlab.data.kuairand_synth import Twin
from nestlab.data.kuairand_synth_shape import K27_SHAPE, PURE_SHAPE, SHAPES
from nestlab.data.twin_criteo import criteo_statistics
from nestlab.data.twin_published import published
from nestlab.data.twin_statistics import compare
from nestlab.errors import UserError

# What is known to differ by more than its tolerance at some seed, each with its reason in the report.
_WHOLE = {"standard log: is_click", "standard log: long_view"}
_BURSTS = {f"user_id, {n}: in the last batch" for n in ("1,024", "4,096")} | {"user_id, 16,384: unique"}
KNOWN = {
    "kuairand-pure": {"tabs: TV of shares", "exact copies", *_BURSTS, *_WHOLE},
    "kuairand-27k": {"videos: shown 2 times", "videos: shown 3 times", "videos: top 1 %"},
    "criteo-kaggle": {"click rate", *(f"C{i}: distinct / values" for i in (2, 6, 14, 15, 18))},
    "criteo-1tb": {
        *(f"C{i}: distinct / values" for i in (3, 7, 8, 15, 24, 26)),
        *(f"all columns, {n}: unique" for n in ("256", "1,024")),
    },
}
# Where so little is seen that chance alone may leave nothing: one row of thousands, ten of a million.
RARE = {"kuairand-pure": {"tab 6: zero plays", "random log: exact copies"}, "criteo-kaggle": set(), "criteo-1tb": set()}
QUICK = [("kuairand-pure", 0), ("criteo-kaggle", 0), ("criteo-kaggle", 1), ("criteo-1tb", 0)]
SLOW = [("kuairand-pure", s) for s in (1, 2, 3)] + [("criteo-1tb", s) for s in (1, 2, 3)]
SLOW += [("criteo-kaggle", s) for s in range(2, 10)]


@pytest.mark.data
@pytest.mark.parametrize("name, seed", [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_every_statistic_is_within_its_tolerance_or_has_a_reason(real_data, name, seed):
    pairs = twin_report.statistics_of(name, real_data, seed=seed)
    report = [compare(*pair) for pair in pairs]
    _explained(name, report)
    figures = [real for real, _ in pairs if real.sample is None and real.compared and real.value]
    nothing = [compare(real, dataclasses.replace(real, value=0.0, error=0.0)) for real in figures]
    assert {line.statistic for line in nothing if line.within} == RARE[name]
    assert len(report) > 80 and {line.source for line in report} == {"real rows", "published"}


def _explained(name, report):
    beyond = [line for line in report if line.within is False]
    assert {line.statistic for line in beyond} <= KNOWN[name]
    assert all(line.why not in ("", "not explained") for line in report if not line.within)
    assert len(json.loads(twin_report.to_json(report))) == len(twin_report.table(report)) == len(report)
    assert twin_report.counted(report).startswith(f"{sum(line.within is True for line in report)} of ")


@pytest.mark.parametrize("rows", [300_000, pytest.param(None, marks=pytest.mark.slow)])
def test_27k_is_compared_with_published_figures_alone(tmp_path, rows):
    report = twin_report.twin_report("kuairand-27k", tmp_path, rows=rows, seed=1)
    _explained("kuairand-27k", report)
    assert {line.source for line in report} == {"published"}
    apart = {line.statistic for line in report if line.within is None}
    assert "users: longest (rows)" in apart and ("users: mean length (rows)" in apart) == (rows is not None)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_random_log_has_its_published_rates(seed):
    """Seen to fail where the random log had the standard log's chances of long views, or its copies."""
    lines = [compare(*pair) for pair in published(Twin(150_000, seed))]
    random = {line.statistic: line for line in lines if line.statistic.startswith("random log")}
    assert len(random) == 7
    assert [line for line in random.values() if line.within is False] == []


def test_of_few_rows_none_of_a_rare_thing_is_chance_and_of_many_it_is_not():
    """Seen to fail where the error of a rate was that of the rate found alone: of none it is nothing."""
    published_rate, rows = twin_published._RANDOM["is_hate"][0], PURE.rows[RANDOM]
    found = []
    for n in (700, 20_000):
        made = twin_published._made(published_rate, np.zeros(n, bool))
        found.append(compare(*twin_published._rate("is_hate", published_rate, rows, 0.15, made)).within)
    assert found == [True, False]


def test_a_report_wants_a_real_sample(tmp_path):
    with pytest.raises(UserError, match="no standard log"):
        twin_report.twin_report("kuairand-pure", tmp_path)
    with pytest.raises(UserError, match="choose kuairand-pure, kuairand-27k, criteo-kaggle, criteo-1tb"):
        twin_report.twin_report("kuairand-1k", tmp_path)


def _rows(shape=KAGGLE_SHAPE, seed=0):
    frame, _ = twin_report._criteo_twin(synthetic.Twin(50_000, seed, shape), 1_000)
    return frame.iloc[:1_000].copy()


def _beyond(one, other):
    pairs = zip(criteo_statistics(one), criteo_statistics(other), strict=True)
    return {line.statistic: line for line in (compare(*pair) for pair in pairs) if not line.within}


@pytest.fixture(scope="module")
def rows():
    return _rows()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_samples_of_one_law_are_within_what_chance_does(rows, seed):
    assert _beyond(rows, _rows(seed=seed)) == {}


def test_a_twin_that_breaks_a_statistic_is_found_out(rows):
    whole = tuple(line for line in KAGGLE_SHAPE.missing if line[1] != ("I4", "I13"))
    split = (*whole, (0.207, ("I4",)), (0.207, ("I13",)))
    apart = _beyond(rows, _rows(dataclasses.replace(KAGGLE_SHAPE, missing=split)))
    assert apart["columns missing together"].why == "not explained: I13=I4"
    moved = _rows(dataclasses.replace(KAGGLE_SHAPE, negative=("I3", *KAGGLE_SHAPE.negative[1:])))
    assert _beyond(rows, moved)["negative columns: I2"].why == "not explained: I2, I3"
    never = rows.assign(label=0, C3=rows["C3"].fillna("0"))
    assert {"click rate", "C3: missing"} <= set(_beyond(rows, never))


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
