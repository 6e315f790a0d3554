"""Repeats over seeds against scipy; what does not compare is refused."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from made_runs import TWIN, amend, finished
from scipy import stats

from nestlab import results
from nestlab.data.dataset import DatasetInfo
from nestlab.data.sequences import SequenceData, SequenceOptions
from nestlab.errors import UserError
from nestlab.results.seeds import repeats
from nestlab.training.retrieval import RankingProtocol

PLAIN, FAST = [0.10, 0.13, 0.11, 0.16], [0.11, 0.15, 0.115, 0.18]


def trainings() -> pd.DataFrame:
    rows = [{"case": "fast", "seed": seed, "HR@10": value} for seed, value in enumerate(FAST)]
    rows += [{"case": "plain", "seed": seed, "HR@10": value} for seed, value in enumerate(PLAIN)]
    return pd.DataFrame(rows).assign(MRR=0.5, data="made")


def test_mean_spread_interval_and_paired_difference():
    """Broken on purpose: differences in the order of the rows in place of by seed."""
    frame = trainings().sample(frac=1, random_state=1)
    found = repeats(frame, "case", ["HR@10", "MRR"], "plain", same=["data"])
    assert found["metric"].tolist() == ["HR@10"] * 2 + ["MRR"] * 2 and found["case"].tolist() == ["plain", "fast"] * 2
    plain, fast = found.iloc[0], found.iloc[1]
    for row, sample in ((plain, PLAIN), (fast, FAST)):
        assert (row["n"], row["mean"], row["sd"]) == (
            4,
            pytest.approx(np.mean(sample)),
            pytest.approx(np.std(sample, ddof=1)),
        )
        expected = stats.t.interval(0.95, 3, loc=np.mean(sample), scale=stats.sem(sample))
        assert (row["low"], row["high"]) == pytest.approx(expected)
    paired = stats.ttest_rel(FAST, PLAIN).confidence_interval(0.95)
    assert (fast["diff_low"], fast["diff_high"]) == pytest.approx((paired.low, paired.high))
    assert fast["difference"] == pytest.approx(np.mean(FAST) - np.mean(PLAIN)) and fast["pairing"] == "paired, 4 seeds"
    assert math.isnan(plain["difference"])
    assert found.iloc[3][["sd", "difference", "diff_low", "diff_high"]].tolist() == [
        0,
        0,
        0,
        0,
    ]  # the same, seed by seed


def test_one_seed_a_missing_figure_and_no_row():
    frame = trainings()
    one = repeats(frame[frame["seed"] == 0], "case", ["HR@10"])
    assert one["case"].tolist() == ["fast", "plain"] and one[["sd", "low", "diff_low"]].isna().all(axis=None)
    frame.loc[(frame["case"] == "fast") & (frame["seed"] == 3), "HR@10"] = math.nan
    found = repeats(frame, "case", ["HR@10"], "plain")
    assert found["n"].tolist() == [4, 3] and found["pairing"].iloc[1] == "paired, 3 seeds"
    assert repeats(frame[:0], "case", ["HR@10"]).empty


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.assign(data=["a"] * 4 + ["b"] * 4), r"do not compare: their data differs: a, b"),
        (lambda f: pd.concat([f, f[:1]]), r"'fast' has seed 0 twice"),
        (lambda f: f.drop(columns="MRR"), r"no column 'MRR': there is case, seed, HR@10, data"),
        (lambda f: f[f["case"] == "fast"], r"no setting 'plain' to compare with: there is fast"),
    ],
)
def test_what_does_not_compare_is_refused(change, reason):
    with pytest.raises(UserError, match=reason):
        repeats(change(trainings()), "case", ["HR@10", "MRR"], "plain", same=["data"])


def sequences(**options) -> SequenceData:
    events = {"video_id": np.arange(12) % 5, "time_ms": np.arange(12), "action": np.ones(12, np.uint8)}
    info = DatasetInfo(**{name: TWIN[name] for name in ("id", "kind", "rows", "fingerprint", "title")})
    return SequenceData(info, events, np.array([0, 6]), SequenceOptions(split="leave_one_out", **options))


def kept(folder, run_seed: int, protocol: RankingProtocol, **options) -> results.Run:
    run = finished(folder, {"lr": 0.1}, run_seed, sequences(**options).info, **{"HR@10": 0.5})
    content = run.manifest
    amend(run, protocol=content.get("protocol", {}) | protocol.facts)
    return run


@pytest.mark.parametrize(
    ("protocol", "options", "reason"),
    [
        ({"sampled": 100}, {}, r"protocol differs: .*ranking=full,.*ranking=full, and sampled among 100 \+ 1"),
        ({"leave_out_seen": True}, {}, r"protocol differs: .*seen=kept,.*seen=left out"),
        ({"ks": (10, 20)}, {}, r"protocol differs: .*k=10,50,.*k=10,20"),
        ({}, {"history": 3}, r"convention differs: .*history 200,.*history 3,"),
        ({}, {"positive": "is_click"}, r"convention differs: .*all events but copies;.*events with is_click but copies;"),
        ({}, {"negatives": 7}, r"convention differs: .*7 uniform negatives"),
    ],
)
def test_rankings_of_another_protocol_are_refused(tmp_path, protocol, options, reason):
    one = kept(tmp_path, 0, RankingProtocol())
    other = kept(tmp_path, 1, RankingProtocol(**protocol), **options)
    with pytest.raises(UserError, match=reason):
        results.compare(results.select(results.Selection((one.id, other.id)), tmp_path))


def test_negatives_of_another_seed_are_a_replicate(tmp_path):
    """Broken on purpose: conventions compared as they are written."""
    runs = [kept(tmp_path, seed, RankingProtocol(), seed=seed) for seed in (0, 1)]
    made = results.compare(results.select(results.Selection(tuple(run.id for run in runs)), tmp_path))
    assert made.table["n"].tolist() == [2]
