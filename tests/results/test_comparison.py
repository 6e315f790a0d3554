"""Means, spreads and intervals against scipy's; and what does not compare is refused with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_runs import REAL, TWIN, amend, finished, two_settings
from scipy import stats

from nestlab import results
from nestlab.errors import UserError
from nestlab.results import intervals


def compared(folder, *names, question=None, **selection):
    chosen = results.select(results.Selection(names, **selection), folder)
    return results.compare(chosen, question)


def test_three_seeds_each_of_two_settings(tmp_path):
    two_settings(tmp_path)
    made = compared(tmp_path)
    assert made.parameters == ("lr",) and list(made.table["metric"]) == ["auc", "auc"]
    first, second = made.table.to_dict("records")
    one, two = np.array([0.5, 0.6, 0.7]), np.array([0.61, 0.70, 0.79])
    for row, sample in ((first, one), (second, two)):
        assert (row["n"], row["mean"], row["sd"]) == (
            3,
            pytest.approx(sample.mean()),
            pytest.approx(sample.std(ddof=1)),
        )
        assert (row["low"], row["high"]) == pytest.approx(
            stats.t.interval(0.95, 2, loc=sample.mean(), scale=stats.sem(sample))
        )
    paired = stats.ttest_rel(two, one).confidence_interval(0.95)
    assert second["difference"] == pytest.approx(0.1) and second["pairing"] == "paired, 3 seeds"
    assert (second["diff_low"], second["diff_high"]) == pytest.approx((paired.low, paired.high))
    assert math.isnan(first["difference"])
    assert made.caption == "quickstart · criteo-synth (SYNTHETIC, 100 rows) · measured" and made.notes == ()


def test_seeds_that_are_not_shared_count_as_independent():
    one, two = {0: 0.5, 1: 0.6, 2: 0.7}, {3: 0.8, 4: 1.0, 5: 0.75}
    found = intervals.of_difference(one, two)
    welch = stats.ttest_ind(list(two.values()), list(one.values()), equal_var=False).confidence_interval(0.95)
    assert found.kind == "unpaired" and (found.low, found.high) == pytest.approx((welch.low, welch.high))
    equal = intervals.of_difference({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0})
    assert (equal.mean, equal.low, equal.high) == (0, 0, 0)


def test_a_bootstrap_is_near_and_always_the_same():
    values = list(np.random.default_rng(1).normal(5, 1, 200))
    first, again = intervals.of_mean(values, "bootstrap"), intervals.of_mean(values, "bootstrap")
    assert first == again and (first.low, first.high) == pytest.approx(
        stats.t.interval(0.95, 199, loc=np.mean(values), scale=stats.sem(values)), abs=0.02
    )


def test_the_interval_holds_what_it_promises():
    """Of 2,000 samples of three, about 95 % of the intervals hold the mean they were drawn from."""
    generator = np.random.default_rng(7)
    found = [intervals.of_mean(sample) for sample in generator.normal(2, 3, (2000, 3))]
    held = np.mean([estimate.low <= 2 <= estimate.high for estimate in found])
    assert abs(held - 0.95) < 0.015


def test_one_seed_has_no_interval_and_says_so(tmp_path):
    finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    finished(tmp_path, {"lr": 0.2}, 0, auc=0.6)
    made = compared(tmp_path)
    assert made.table[["sd", "low", "high", "diff_low", "diff_high"]].isna().all(axis=None)
    assert made.table["difference"][1] == pytest.approx(0.1)
    assert made.notes == ("every setting has one seed only: no interval",)


def test_the_same_seed_twice_counts_once(tmp_path):
    for auc in (0.5, 0.9):
        finished(tmp_path, {"lr": 0.1}, 0, auc=auc)
    finished(tmp_path, {"lr": 0.1}, 1, auc=0.7)
    made = compared(tmp_path)
    (row,) = made.table.to_dict("records")
    assert (row["n"], row["mean"], row["setting"]) == (2, pytest.approx(0.8), "all runs")
    assert made.notes == ("older runs of the same setting and seed left out: 1",)


def test_where_files_lie_is_no_setting(tmp_path):
    finished(tmp_path, {"lr": 0.1, "data_root": "datasets"}, 0, auc=0.5)
    finished(tmp_path, {"lr": 0.1, "data_root": "../datasets"}, 1, auc=0.6)
    assert compared(tmp_path).table["n"].tolist() == [2]


def test_by_takes_what_follows_from_it(tmp_path):
    for scale, batch in (("smoke", 128), ("quick", 512)):
        for seed in (0, 1):
            finished(tmp_path, {"scale": scale, "batch": batch, "lr": 0.1}, seed, auc=0.5 + seed)
    question = results.Question(by=("scale",), metrics=("auc",))
    assert compared(tmp_path, question=question).table["scale"].tolist() == ["smoke", "quick"]
    finished(tmp_path, {"scale": "quick", "batch": 512, "lr": 0.2}, 0, auc=0.5)
    with pytest.raises(UserError, match=r"also differ in lr: add --by lr, or choose runs with --where"):
        compared(tmp_path, question=question)
    assert len(compared(tmp_path, where={"lr": "0.10"}).table) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": REAL}, r"their data differs: \S+ has criteo-synth ffffffffffff, \S+ has criteo-1tb aaaaaaaaaaaa"),
        ({"dataset": TWIN | {"fingerprint": "e" * 64}}, r"of a twin, rows and data_seed must be equal"),
        ({"dataset": None}, r"no data set recorded"),
        ({"dataset": TWIN | {"convention": "raw"}}, r"convention differs: \S+ has none stated, \S+ has raw"),
        ({"dataset": TWIN | {"split": "by day"}}, r"split differs"),
        ({"protocol": {"ranking": "sampled", "k": 10}}, r"protocol differs: .* has ranking=sampled, k=10"),
        ({"params": {"lr": 0.1, "split": "random"}}, r"protocol differs: .* has split=random"),
        ({"experiment": "other"}, r"experiment differs"),
        ({"status": "failed", "exception": "1 / 0"}, r"is no result: failed \(1 / 0\); leave it out"),
        ({"status": "killed"}, r"is no result: killed; leave it out"),
        ({"status": "running"}, r"is no result: running"),
    ],
)
def test_what_does_not_compare_is_refused_in_one_line(tmp_path, changes, reason):
    first = finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    other = finished(tmp_path, {"lr": 0.1}, 1, auc=0.6)
    amend(other, **changes)
    with pytest.raises(UserError, match=reason) as caught:
        compared(tmp_path, first.id, other.id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "remedy"),
    [
        ({}, {"dataset": REAL}, {"dataset": "criteo-synth"}),
        ({"dim": 8, "model": "hstu"}, {"dim": 16, "model": "din", "convention": "by row"}, {"model": "hstu"}),
        ({"dim": 8}, {"dim": 16, "protocol": {"k": 10}}, {"dim": "8"}),
        ({"rows": 10}, {"rows": 20, "dataset": TWIN | {"fingerprint": "e" * 64}}, {"rows": "10"}),
    ],
)
def test_a_refusal_names_a_choice_that_works(tmp_path, one, other, remedy):
    """Three runs of one kind and one of another: the choice it tells leaves the three. `steps` differs in each."""
    for seed in range(3):
        finished(tmp_path, {"steps": seed, "dataset": "criteo", **one}, seed, auc=0.5)
    facts = {name: other[name] for name in ("protocol", "dataset") if name in other}
    if "convention" in other:
        facts["dataset"] = TWIN | {"convention": other["convention"]}
    params = {name: other[name] for name in other if name not in ("convention", *facts)}
    amend(finished(tmp_path, {"steps": 3, "dataset": "criteo", **params}, 3, auc=0.5), **facts)
    with pytest.raises(UserError) as caught:
        compared(tmp_path)
    assert str(caught.value).endswith("--where " + "".join(f"{name}={value}" for name, value in remedy.items()))
    assert compared(tmp_path, where=remedy).table["n"].sum() == 3


def test_how_a_figure_was_obtained_is_a_setting(tmp_path):
    finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    amend(finished(tmp_path, {"lr": 0.1}, 0, auc=0.6), how="simulated cluster")
    made = compared(tmp_path)
    assert made.table["how"].tolist() == ["measured", "simulated cluster"] and "simulated cluster" in made.caption


def test_failed_runs_are_not_chosen_and_other_machines_are_noted(tmp_path):
    runs = two_settings(tmp_path)
    amend(runs[0], status="killed")
    amend(runs[1], cpu="another", packages={"torch": "0"})
    made = compared(tmp_path)
    assert made.table["n"].tolist() == [2, 3] and made.table["pairing"][1] == "paired, 2 seeds"
    assert made.notes == ("the runs also differ in package versions, processor",)


def test_errors_name_what_there_is(tmp_path):
    with pytest.raises(UserError, match="no finished runs in"):
        compared(tmp_path)
    finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    with pytest.raises(UserError, match="at least two runs: there is one"):
        compared(tmp_path)
    finished(tmp_path, {"lr": 0.1}, 1, auc=0.5)
    for kind, message in [
        ({"question": results.Question(metrics=("acu",))}, "no numeric key figure 'acu': there is auc"),
        ({"question": results.Question(by=("x",))}, "no parameter 'x' to compare by"),
        ({"question": results.Question(method="z")}, "choose one of t, bootstrap"),
        ({"where": {"x": "1"}}, "no run has a parameter 'x': there is lr"),
        ({"where": {"lr": "7"}}, r"has lr=7: there is 0\.1"),
        ({"where": {"dataset": "other"}}, r"has dataset=other: there is criteo-synth"),
        ({"experiment": "none"}, "no finished run of experiment 'none'"),
    ]:
        with pytest.raises(UserError, match=message):
            compared(tmp_path, **kind)
    results.start("other", {}, results_dir=tmp_path).finish()
    with pytest.raises(UserError, match=r"--experiment takes one of other \(1 run\), quickstart \(2 runs\)"):
        compared(tmp_path)


def test_of_several_experiments_the_one_that_fits_is_taken(tmp_path):
    """Seen to fail where the experiments were asked for before `where` was looked at."""
    for experiment, steps in (("train", 60), ("train", 70), ("accuracy", 60), ("accuracy", 40)):
        results.start(experiment, {"steps": steps, "seed": 0}, results_dir=tmp_path, seed=0).finish()
    (taken,) = results.select(results.Selection(where={"steps": "40"}), tmp_path)
    assert taken.manifest["experiment"] == "accuracy"
    with pytest.raises(UserError, match=r"takes one of accuracy \(1 run\), train \(1 run\)$"):
        results.select(results.Selection(where={"steps": "60"}), tmp_path)
    with pytest.raises(UserError, match=r"no finished run has steps=80 or 90: there is 60, 70, 40$"):
        results.select(results.Selection(where={"steps": ["80", "90"]}), tmp_path)


@pytest.mark.parametrize(
    ("selection", "advice"),
    [
        ({"experiment": "quickstart"}, "run again with another seed or setting (nestlab run … -p seed=1)"),
        ({"experiment": "train"}, "run again with another seed or setting (nestlab train … --seed 1)"),
        ({"where": {"lr": "0.1"}, "experiment": "train"}, "(nestlab train … --seed 1), or take a --where away"),
    ],
)
def test_one_run_is_no_comparison_and_only_what_was_given_is_taken_away(tmp_path, selection, advice):
    finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    results.start("train", {"lr": 0.1}, results_dir=tmp_path, seed=0).finish()
    chosen = results.Selection(**selection)
    with pytest.raises(UserError) as caught:
        results.compare(results.select(chosen, tmp_path), chosen=chosen)
    assert str(caught.value).endswith(advice)


CLICKS = ("din", "multitask", "dlrm")


def models(folder, *names, seed=0):
    """A run a model, of which hstu's is judged by another protocol."""
    for name in names:
        run = finished(folder, {"model": name, "dim": 8 if name == "dlrm" else 16, "techniques": ""}, seed, auc=0.5)
        amend(run, protocol={"judged": "by rank" if name == "hstu" else "by click"})


def hinted(error):
    """The choices that a refusal tells, each as `select` takes it."""
    found = []
    for choice in str(error).partition("what compares with each other: ")[2].split(", or "):
        where = {}
        for word in choice.replace("--where ", "").split():
            name, _, value = word.partition("=")
            where.setdefault(name, []).append(value)
        found.append(where)
    return found


def test_a_refusal_names_every_group_that_compares(tmp_path):
    """Seen to fail where the most frequent value was told: of one run each that is the first, which compares with none."""
    models(tmp_path, "hstu", *CLICKS)
    question = results.Question(by=("model",))
    with pytest.raises(UserError, match="their protocol differs") as caught:
        compared(tmp_path, question=question)
    assert hinted(caught.value) == [{"model": list(CLICKS)}]
    assert compared(tmp_path, question=question, where=hinted(caught.value)[0]).table["model"].tolist() == list(CLICKS)
    models(tmp_path, "hstu", seed=1)
    with pytest.raises(UserError) as caught:
        compared(tmp_path)
    assert hinted(caught.value) == [{"model": list(CLICKS)}, {"model": ["hstu"]}]
    assert [compared(tmp_path, where=where).table["n"].sum() for where in hinted(caught.value)] == [3, 2]


def test_a_refusal_of_runs_of_which_no_two_compare_says_so(tmp_path):
    models(tmp_path, "hstu", "din")
    with pytest.raises(UserError, match="no two of these 2 compare: run one of them with another seed or setting$"):
        compared(tmp_path)


def test_a_choice_may_take_two_parameters(tmp_path):
    for lr in (0.1, 0.2):
        for dim in (8, 16):
            run = finished(tmp_path, {"lr": lr, "dim": dim}, 0, auc=0.5)
            again = finished(tmp_path, {"lr": lr, "dim": dim}, 1, auc=0.5)
            for each in (run, again) if (lr, dim) == (0.2, 16) else ():
                amend(each, protocol={"k": 10})
    for seed in (0, 1):  # a parameter that tells the group apart is none that a file's place is
        finished(tmp_path, {"lr": 0.1, "dim": 8}, seed, auc=0.5)
    with pytest.raises(UserError) as caught:
        compared(tmp_path)
    assert {"lr": ["0.2"], "dim": ["16"]} in hinted(caught.value)
    assert compared(tmp_path, where={"lr": "0.2", "dim": ["16"]}).table["n"].tolist() == [2]


def test_the_base_is_the_plain_setting_else_the_oldest(tmp_path):
    """Seen to fail where the oldest was the base, and where nothing and `plain` were two settings."""
    for seed, (techniques, auc) in enumerate([("nestpipe", 0.7), ("", 0.5), ("plain", 0.6), ("recsdk", 0.8)]):
        finished(tmp_path, {"techniques": techniques}, seed, auc=auc)
    made = compared(tmp_path)
    assert made.table["techniques"].tolist() == ["plain", "nestpipe", "recsdk"]
    assert made.table["n"].tolist() == [2, 1, 1] and made.base == "techniques=plain (the plain one)"
    assert made.table["difference"][1:].tolist() == pytest.approx([0.15, 0.25])
    for text in ("", "plain"):
        assert compared(tmp_path, where={"techniques": text}).table["n"].tolist() == [2]
    both = compared(tmp_path, where={"techniques": ["recsdk", "nestpipe"]})
    assert both.table["techniques"].tolist() == ["nestpipe", "recsdk"] and both.base.endswith("nestpipe (the oldest)")


def test_one_table_over_many_runs(tmp_path):
    runs = [finished(tmp_path, {"lr": 0.1}, seed, auc=0.5) for seed in (3, 4)]
    results.start("other", {}, results_dir=tmp_path).finish()
    amend(finished(tmp_path, {"lr": 0.1}, 5, auc=0.5), status="failed")
    frame = results.table_over_runs("steps", results_dir=tmp_path)
    assert frame["run_id"].tolist() == [run.id for run in runs for _ in range(2)]
    assert frame["seed"].tolist() == [3, 3, 4, 4] == frame["seed_"].tolist()
    assert frame["step"].tolist() == [1, 2, 1, 2] and set(frame["dataset"]) == {"criteo-synth"}
    assert list(frame.columns)[-3:] == ["step", "seed_", "loss"]
    everything = results.table_over_runs("steps", results_dir=tmp_path, statuses=("ok", "failed"))
    assert len(everything) == 6
    with pytest.raises(UserError, match=r"no run of experiment 'other' in .* has a table 'steps'"):
        results.table_over_runs("steps", experiment="other", results_dir=tmp_path)


def test_tables_of_other_columns_are_joined_by_name(tmp_path):
    import pandas as pd

    for frame in (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": ["x"], "a": [2.5]})):
        with results.start("train", {}, results_dir=tmp_path) as run:
            run.table("t", frame)
    joined = results.table_over_runs("t", results_dir=tmp_path)
    assert joined["a"].tolist() == [1.0, 2.5] and joined["b"][1] == "x" and pd.isna(joined["b"][0])


def test_a_parameter_may_have_the_name_of_a_statistic(tmp_path):
    for n in (1, 2):
        finished(tmp_path, {"n": n, "mean": [n]}, 0, auc=0.5)
    made = compared(tmp_path)
    assert made.table["n (parameter)"].tolist() == [1, 2] and made.table["n"].tolist() == [1, 1]
