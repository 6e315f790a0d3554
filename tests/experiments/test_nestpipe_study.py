"""The NestPipe study as a whole, with ranks that say what they are told to: kept once, shown, answered, closed."""

from __future__ import annotations

import pandas as pd
import pytest

from nestlab import results
from nestlab.errors import RankFailed, UserError
from nestlab.experiments import trained_once
from nestlab.experiments.nestpipe import restart, study
from nestlab.experiments.nestpipe.measuring import Measured
from nestlab.experiments.nestpipe.study import nestpipe


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))
    given = {"dataset": "kuairand-synth", "data_root": str(tmp_path), "scale": "smoke", "device_name": "cpu"}
    made = nestpipe(**given, results_dir=str(tmp_path / "r"))
    yield made
    made.run.finish("killed")


def test_the_ranks_measure_once_and_all_is_kept(small, monkeypatch):
    started = []
    monkeypatch.setattr(restart, "kill_in_the_middle", lambda s, folder: started.append("killed"))
    rows = {"ablation": [], "exactness": [], "curriculum": [{"depth": d, "seconds": 1.0} for d in ("constant", "ramp")]}
    found = Measured(rows, {"none": None, "DBP + FWP + greedy": None}, {"ablation": 1.0})
    monkeypatch.setattr(trained_once, "on_ranks", lambda *args, **kwargs: started.append("measured") or found)
    monkeypatch.setattr(study, "write_chrome_trace", lambda trace, path: None)
    monkeypatch.setattr(study.exactness, "joined", lambda one, other: pd.DataFrame({"case": ["none"]}))
    assert "2 ranks" in small.measure() and "2 ranks" in small.measure()
    small.frame("curriculum")
    assert started == ["killed", "measured"]
    assert {"ablation", "exactness", "curriculum"} <= set(results.load(small.run.path).tables)
    assert small.says("curriculum") == "A smoke run: nothing is concluded."
    assert small.beside("curriculum")["claim"].tolist() == ["NP-A-013"]


def test_after_a_failure_or_an_interrupt_it_begins_anew(small, monkeypatch):
    """Nothing half measured is kept, and no folder of the killed training stays."""
    folders = []

    def fail(settings, folder):
        folders.append(folder)
        raise RankFailed("rank 1 ended") if len(folders) == 1 else KeyboardInterrupt

    monkeypatch.setattr(restart, "kill_in_the_middle", fail)
    with pytest.raises(RankFailed):
        small.measure()
    with pytest.raises(KeyboardInterrupt):
        small.figure("ablation")
    assert small.frames == {} and len(folders) == 2 and not any(folder.exists() for folder in folders)


def test_what_needs_no_ranks_starts_none(small, monkeypatch):
    monkeypatch.setattr(restart, "kill_in_the_middle", lambda *args: pytest.fail("ranks were started"))
    title = small.figure("clustering").get_axes()[0].get_title(loc="left")
    assert "SYNTHETIC" in title and "measured" in title and "model positionwise on rows" in small.about()
    assert small.says("clustering") == "A smoke run: nothing is concluded."
    assert (small.run.path / "figures" / "clustering.png").is_file()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scale": "huge"}, "scale=huge: it must be one of smoke, quick, paper"),
        ({"world_size": 0}, "world_size=0"),
        ({"backend": "nccl"}, "backend=nccl on cpu: give backend=gloo"),
        ({"dataset": "nothing"}, "nothing"),
        (
            {"dataset": "criteo-synth", "model": "hstu", "scale": "smoke"},
            "'criteo-synth' has no histories of users, whi",
        ),
    ],
)
def test_what_makes_no_sense_leaves_no_run(tmp_path, given, says):
    common = {"data_root": str(tmp_path), "results_dir": str(tmp_path / "r"), "device_name": "cpu"}
    with pytest.raises(UserError, match=says):
        nestpipe(**{**common, **given})
    assert not (tmp_path / "r").exists()


def test_unknown_names_are_said(small):
    with pytest.raises(UserError, match="no part 'ablatoin'; there are ablation, exactness"):
        small.frame("ablatoin")
    small.frames["ablation"] = pd.DataFrame()
    with pytest.raises(UserError, match="no timeline 'later'; there are before, after"):
        small.timeline("later")


def test_a_killed_training_that_came_to_its_end_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(restart, "on_ranks", lambda *args, **kwargs: None)
    with pytest.raises(RuntimeError, match="came to its end"):
        restart.kill_in_the_middle(_OneRank(), tmp_path)

    def failed(*args, **kwargs):
        raise RankFailed("rank 0 failed: ValueError")

    monkeypatch.setattr(restart, "on_ranks", failed)
    with pytest.raises(RankFailed, match="ValueError"):  # not the kill, so that it is no restart to show
        restart.kill_in_the_middle(_OneRank(), tmp_path)


class _OneRank:
    world_size = 1
