"""The ranking study on made frames: what is said of models, actions and techniques, and its pictures."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from nestlab.errors import UserError
from nestlab.experiments.compared import INT8, PLAIN, STALE, reordered
from nestlab.experiments.nestpipe.cases import BOTH, NESTPIPE
from nestlab.experiments.over_seeds import FLOAT32, FLOAT64
from nestlab.experiments.ranking import models, tasks, techniques
from nestlab.experiments.ranking.looking import METRICS
from nestlab.experiments.ranking.measuring import CONSTANT
from nestlab.experiments.ranking.measuring import techniques as cases
from nestlab.experiments.ranking.settings import MODELS, settings
from nestlab.models.ranking import TASKS

TOLD = {"data": "made", "how": "measured", "samples": 1000, "label rate": 0.4, "GAUC share": 0.7, "positives": 400}
TOLD |= {"seconds": 1.0, "mean prediction": 0.4, "weights": 10, "declared": "exact", "loss": 1.0, "changed": 0}
SPREAD = 0.001  # of three seeds around a mean


def metrics(auc: float, seed: int, step: float = SPREAD) -> dict[str, float]:
    """NE falls as AUC rises; the seeds 0, 1, 2 have a standard deviation of `step`."""
    by = step * (seed - 1)
    return {"AUC": auc + by, "GAUC": auc - 0.1 + by, "log loss": 1.2 - auc - by, "NE": 1.5 - auc - by}


def of_models(aucs: dict[str, float], seeds: int = 3) -> pd.DataFrame:
    rows = [TOLD | {"model": CONSTANT, "seed": 0, "AUC": 0.5, "GAUC": 0.5, "log loss": 0.69, "NE": 1.001, "seconds": 0}]
    for seed in range(seeds):
        for number, (name, shown) in enumerate(MODELS.items()):
            step = SPREAD * (-1) ** number  # a seed does not do the same to all
            interval = {"AUC low": aucs[name] - 0.01, "AUC high": aucs[name] + 0.01} if seed == 0 else {}
            rows.append(TOLD | {"model": shown, "seed": seed} | metrics(aucs[name], seed, step) | interval)
    return pd.DataFrame(rows)


AUCS = {"dlrm": 0.7, "dcnv2": 0.704, "din": 0.72, "multitask": 0.71, "multitask_hstu": 0.71}


def test_a_model_is_better_only_beyond_what_seeds_do():
    """Broken on purpose: signs alone call DCN-V2 better than DLRM. Differences of a standard deviation of 0.002 over
    three seeds reach 0.002 · 4.303 / √3 = 0.0050 to either side."""
    said = models.says(of_models(AUCS))
    assert "DCN-V2 against DLRM: AUC no difference shown (+0.0040; -0.0010 to +0.0090)" in said
    assert "DIN against DCN-V2: AUC **higher** (+0.0160; +0.0110 to +0.0210), GAUC **higher**" in said
    assert "multi-task, attention against DIN: AUC **lower** (-0.0100" in said
    assert "an NE of 1.0010; the models an AUC of 0.7000 to 0.7200" in said and "±0.0100" in said
    alone = models.says(of_models(AUCS, seeds=1))
    assert "Of DIN and DCN-V2 one seed tells nothing." in alone and "higher" not in alone and "lower" not in alone


def test_table_picture_and_figures_of_models():
    frame = of_models(AUCS)
    table = models.digest(frame).set_index("model")
    assert table.loc["DIN", "AUC"] == "0.7200 ± 0.0010" and table.loc[CONSTANT, "AUC"] == "0.5000"
    axes = models.plot(frame, "title").axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list(MODELS.values())
    assert "constant: 0.5000" in axes[0].get_xlabel() and "lower is better" in axes[3].get_xlabel()
    found = models.key_figures(frame)
    assert found["auc_din"] == pytest.approx(0.72) and len(found) == 15


def of_tasks(seeds: int = 3) -> pd.DataFrame:
    rows = []
    for seed in range(seeds):
        for model, better in ((MODELS["multitask"], 0.0), (MODELS["multitask_hstu"], 0.01)):
            for number, task in enumerate(TASKS):
                told = TOLD | {"positives": 7 if task == "is_hate" else 400, "label rate": 0.1}
                step = SPREAD if better else -SPREAD
                found = metrics(0.7 - 0.02 * number + better * (task == "is_like"), seed, step)
                if task == "is_follow":
                    found["NE"] = 1.02
                rows.append(told | {"model": model, "task": task, "seed": seed} | found)
    return pd.DataFrame(rows)


def test_of_few_rows_nothing_is_concluded():
    said = tasks.says(of_tasks())
    assert "Of *is_hate* fewer than 100 held-out rows say yes" in said
    assert "*is_follow*: **no better than the rate itself**" in said
    assert "AUC from 0.5600 (is_profile_enter) to 0.7000 (is_click)" in said
    assert "*long_view, is_profile_enter*: within a user's rows **no better than chance**" in said
    assert "attention's, where it is beyond what seeds do: is_like +0.0100." in said
    assert "encoder" not in tasks.says(of_tasks(seeds=1))
    assert "auc_is_hate" not in tasks.key_figures(of_tasks())


def test_an_action_that_no_row_has_is_drawn_and_shown_as_nothing():
    frame = of_tasks()
    frame.loc[frame["task"] == "is_hate", ["AUC", "GAUC", "NE"]] = np.nan
    frame.loc[frame["task"] == "is_hate", "positives"] = 0
    assert (tasks.digest(frame).set_index("task").loc["is_hate", "AUC"] == "").all()
    labels = [label.get_text() for label in tasks.plot(frame, "title").axes[0].get_xticklabels()]
    assert labels[0] == "click (400)" and "hate (0)" in labels


def of_techniques(seeds: int = 3) -> pd.DataFrame:
    rows = []
    for seed in range(seeds):
        zero = {"weight_difference": 0.0, "equal_to_plain": True}
        rows += [TOLD | zero | {"case": PLAIN, "dtype": d, "seed": seed} | metrics(0.7, seed) for d in DTYPES]
        for case in cases(settings("quick")):
            told = TOLD | {"case": case.name, "declared": case.flags.exactness(), "seed": seed, "dtype": FLOAT32}
            by = COSTS.get(case.name, 1e-5 if reordered(case) else 0.0)
            known = {"weight_difference": abs(by), "equal_to_plain": by == 0} if case.exact else {}
            step = -SPREAD if case.name == INT8 else SPREAD
            rows.append(told | known | metrics(0.7 + by, seed, step))
            if reordered(case):
                double = {"dtype": FLOAT64, "weight_difference": 1e-12, "equal_to_plain": False}
                rows.append(told | double | metrics(0.7, seed))
    return pd.DataFrame(rows)


DTYPES = (FLOAT32, FLOAT64)
COSTS = {STALE: -0.004, INT8: -0.0005}


def test_which_techniques_are_compared():
    names = [case.name for case in cases(settings("quick"))]
    assert names == ["DBP", "FWP", BOTH, NESTPIPE, STALE, INT8]
    assert INT8 not in [case.name for case in cases(settings("quick", world_size=1))]


def test_exact_ones_are_exact_and_inexact_ones_have_a_cost():
    frame = of_techniques()
    said = techniques.says(frame)
    assert "In float32 *DBP* ends with the plain loop's bits" in said
    assert (
        f"*FWP, {BOTH}, {NESTPIPE}* end with weights within 1.0e-12" in said and "within the tolerance of 1e-09" in said
    )
    assert "moves a metric by up to 1.0e-05" in said and "no metric differs at all" in said
    assert f"*{STALE}* -0.0040 (-0.0040 to -0.0040: **beyond what seeds do**)" in said
    assert f"*{INT8}* -0.0005 (-0.0055 to +0.0045: none that shows)" in said
    figures = techniques.key_figures(frame)
    assert figures["auc_change_stale"] == pytest.approx(-0.004) and figures["exact_weight_difference_float64"] == 1e-12
    assert techniques.plot(frame, "title").axes
    table = techniques.digest(frame).set_index(["technique", "computed in"])
    assert table.loc[("DBP", "float32"), "Δ AUC"] == "0" and set(METRICS) < set(table.columns)


def test_what_is_not_exact_is_said_so():
    """What would break it: a tolerance that is told but not looked at."""
    frame = of_techniques(seeds=1)
    frame.loc[frame["dtype"] == FLOAT64, "weight_difference"] = 1e-6
    frame.loc[frame["case"] == "DBP", "equal_to_plain"] = False
    said = techniques.says(frame)
    assert "**beyond** the tolerance" in said and "**No technique ends with the plain loop's bits.**" in said
    assert f"*{STALE}* -0.0040, of one seed" in said and "seeds do" not in said


def test_every_part_is_in_the_notebook(project):
    from nestlab.experiments.ranking.study import NOTEBOOK, Study

    book = json.loads((project / NOTEBOOK).read_text(encoding="utf-8"))
    source = "\n".join("".join(cell["source"]) for cell in book["cells"])
    assert all(not cell.get("outputs") for cell in book["cells"])
    for part in Study.parts:
        assert all(f'study.{what}("{part}")' in source for what in ("figure", "says", "table"))


def test_settings_that_make_no_sense():
    with pytest.raises(UserError, match="ranking: scale=huge: it must be one of smoke, quick, paper"):
        settings("huge")
    with pytest.raises(UserError, match="world_size=0: it must be at least 1"):
        settings("quick", world_size=0)
