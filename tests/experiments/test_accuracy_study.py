"""The accuracy study as a whole, with ranks that say what they are told to: kept once, shown, answered, closed."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from nestlab import results
from nestlab.errors import UserError
from nestlab.experiments import trained_once
from nestlab.experiments.accuracy import tuning
from nestlab.experiments.accuracy.measuring import Measured
from nestlab.experiments.accuracy.settings import METRICS
from nestlab.experiments.accuracy.study import accuracy


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))
    given = {"dataset": "kuairand-synth", "data_root": str(tmp_path), "scale": "smoke", "device_name": "cpu"}
    made = accuracy(**given, results_dir=str(tmp_path / "r"))
    yield made
    made.run.finish("killed")


def test_the_run_says_what_is_compared_and_how(small):
    manifest = results.load(small.run.path).manifest
    assert "next item" in manifest["dataset"]["convention"] and manifest["dataset"]["kind"] == "synthetic"
    assert manifest["protocol"]["ranking"] == "full" and manifest["protocol"]["seen"] == "left out"
    assert manifest["protocol"]["split"] == "time" and manifest["protocol"]["heldout"] > 10
    said = small.about()
    assert "SYNTHETIC" in said and "smoke run" in said and "held-out samples" in said


def test_the_ranks_train_once_and_all_is_kept(small, monkeypatch):
    started = []
    curves = [{"case": "plain", "seed": 0, "step": 1, "loss": 2.0, "data": "made", "how": "measured"}]
    curves.append({**curves[0], "case": "DBP"})
    plain = {"case": "plain", "dtype": "float32", "seed": 0, "seconds": 1.0, "model": "HSTU", "declared": "exact"}
    plain |= dict.fromkeys(METRICS, 0.1) | {"samples": 10, "changed": 0, "loss": 2.0, "data": "made"}
    others = [{"model": "SASRec", "seconds": 1.0}, {"model": "most popular", "seconds": 0.0}]
    others.append({"model": "HSTU", "seconds": 1.0})
    trained = {"techniques": [plain | {"how": "measured"}], "curves": curves, "encoders": others}
    found = Measured(trained, {"encoders": 3.0}, 2)
    monkeypatch.setattr(trained_once, "on_ranks", lambda *args, **kwargs: started.append(args) or found)
    assert "2 trainings on 2 ranks" in small.measure() and "2 trainings" in small.measure()
    assert "*DBP*" in small.says("curves") and len(started) == 1
    assert small.says("encoders") == "A smoke run: nothing is concluded."
    assert "SMOKE: metrics mean nothing" in small.figure("curves").get_suptitle()
    assert {"techniques", "curves", "encoders"} <= set(results.load(small.run.path).tables)
    small.frames.pop("encoders")  # which has no metrics here
    assert set(small.still_open()["claim"]) >= {"NP-P-006", "RL-P-084"}
    assert small.published()["claim"].str.startswith("RL-P-").all()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scale": "huge"}, "scale=huge: it must be one of smoke, quick, paper"),
        ({"model": "dlrm"}, "model=dlrm: it must be one of"),
        ({"backend": "nccl"}, "backend=nccl on cpu: give backend=gloo"),
        ({"dataset": "criteo-synth"}, "has no histories of users; take a KuaiRand data set"),
    ],
)
def test_what_makes_no_sense_leaves_no_run(tmp_path, monkeypatch, given, says):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))
    common = {"data_root": str(tmp_path), "results_dir": str(tmp_path / "r"), "device_name": "cpu", "scale": "smoke"}
    with pytest.raises(UserError, match=says):
        accuracy(**{**common, **given})
    assert not (tmp_path / "r").exists()


def test_the_recipe_is_looked_at_on_the_validation_part(small, monkeypatch):
    """What would break it: with PART = 'heldout' the parts that were read are others."""
    from nestlab.data.sequences import SequenceData

    read, part = [], SequenceData.targets
    monkeypatch.setattr(SequenceData, "targets", lambda self, name: read.append(name) or part(self, name))
    found = tuning.epochs(replace(small.settings, world_size=1, epochs=2), "sasrec")
    assert set(read) == {"validation"} and found["epoch"].tolist() == [0, 1, 2]
    assert found["model"].tolist() == ["most popular", "SASRec", "SASRec"] and found.loc[1:, "loss"].notna().all()
    assert isinstance(found, pd.DataFrame) and found["HR@10"].between(0, 1).all()
