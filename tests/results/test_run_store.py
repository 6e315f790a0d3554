"""A run is visible from its first moment, its end is told truthfully, and a broken manifest costs one row."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nestlab import results
from nestlab.errors import UserError
from nestlab.results import machine, manifest


def only(folder: Path) -> pd.Series:
    frame = results.list_runs(folder)
    assert len(frame) == 1
    return frame.iloc[0]


def child(code: str, folder: Path, **extra: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, env=os.environ | extra
    )


def test_visible_as_running_before_anything_else(tmp_path):
    run = results.start("train", {"rows": 3, "results": "here"}, results_dir=tmp_path, seed=7)
    row = only(tmp_path)
    assert (row["status"], row["run_id"], row["seed"], row["via"]) == ("running", run.id, 7, "library")
    assert run.path.parent == tmp_path / "train"
    run.finish()
    assert only(tmp_path)["status"] == "ok"


def test_a_complete_run_reads_back(tmp_path):
    frame = pd.DataFrame({"step": [1, 2], "auc": [0.5, 0.75]})
    with results.start("train", {"lr": np.float32(0.5), "sizes": (1, 2)}, results_dir=tmp_path) as run:
        run.dataset({"id": "criteo-1tb", "kind": "real", "rows": 5000, "fingerprint": "ab"})
        run.table("metrics", frame)
        run.file("trace.json.gz", b"trace")
        run.summary(auc=np.float64(0.75))
        run.summary(loss=float("nan"))
    loaded = results.load(run.id[:12], tmp_path)
    pd.testing.assert_frame_equal(loaded.table("metrics"), frame)
    assert loaded.tables == ["metrics"]
    content = loaded.manifest
    assert content["params"] == {"lr": 0.5, "sizes": [1, 2]}
    assert content["summary"] == {"auc": 0.75, "loss": None}
    assert content["dataset"]["rows"] == 5000 and content["exit_code"] == 0 and content["duration_s"] >= 0
    assert {"torch", "nestlab"} <= content["packages"].keys() and content["cores"] >= 1
    assert sorted(path.name for path in run.path.rglob("*") if path.is_file()) == [
        "manifest.json",
        "metrics.parquet",
        "trace.json.gz",
    ]
    with pytest.raises(UserError, match="has no table 'x': it has metrics"):
        loaded.table("x")


def test_a_figure_is_a_png(tmp_path):
    from matplotlib.figure import Figure

    with results.start("train", {}, results_dir=tmp_path) as run:
        path = run.figure("curve", Figure(figsize=(1, 1)))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_dataset_may_be_an_object(tmp_path):
    @dataclasses.dataclass
    class Info:
        id: str = "criteo-synth"
        kind: str = "synthetic"
        rows: int = 10
        fingerprint: str = "f"

    with results.start("train", {}, results_dir=tmp_path) as run:
        run.dataset(Info())
        with pytest.raises(UserError, match="kind must be real or synthetic"):
            run.dataset({"id": "x", "kind": "sample"})
    assert only(tmp_path)["dataset"]["kind"] == "synthetic"


def test_an_exception_is_a_failed_run(tmp_path):
    with pytest.raises(ValueError), results.start("train", {}, results_dir=tmp_path):
        raise ValueError("wrong shape")
    row = only(tmp_path)
    assert (row["status"], row["exception"], row["exit_code"]) == ("failed", "ValueError: wrong shape", 1)


def test_an_interruption_is_a_killed_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), results.start("train", {}, results_dir=tmp_path):
        raise KeyboardInterrupt
    assert only(tmp_path)["status"] == "killed"


WAITS = """
import sys, time
from nestlab import results
run = results.start("train", {}, results_dir=sys.argv[1])
print("started", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGKILL, "its process is gone")])
def test_a_run_that_is_ended_from_outside_is_killed(tmp_path, number, reason):
    process = child(WAITS, tmp_path)
    process.stdout.readline()
    assert only(tmp_path)["status"] == "running"
    process.send_signal(number)
    assert process.wait() == -number
    row = only(tmp_path)
    assert (row["status"], row["exception"]) == ("killed", reason)
    assert results.load(row["path"]).manifest["status"] == "killed"


def test_a_process_that_just_ends_leaves_a_failed_run(tmp_path):
    code = "import sys; from nestlab import results; run = results.start('train', {}, results_dir=sys.argv[1])"
    assert child(code, tmp_path).wait() == 0
    assert only(tmp_path)["status"] == "failed"


def test_the_end_of_a_forked_child_is_not_the_end_of_the_run(tmp_path):
    # The child says that it is up: a signal that comes during the fork itself is lost. It sleeps in short pieces: one
    # that comes just before a sleep is handled after it.
    code = """
import os, signal, sys, time
from nestlab import results
run = results.start("train", {}, results_dir=sys.argv[1])
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(writer, b"up")
    for _ in range(1200):
        time.sleep(0.05)
    os._exit(1)
os.read(reader, 2)
os.kill(pid, signal.SIGTERM)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM
assert results.load(run).manifest["status"] == "running"
run.finish()
"""
    assert child(code, tmp_path).wait() == 0
    assert only(tmp_path)["status"] == "ok"


def test_a_number_that_another_process_has_now_is_gone():
    here = machine.this_process()
    assert not machine.is_gone(here)
    assert machine.is_gone(here | {"started": here["started"] - 5})
    assert not machine.is_gone(here | {"host": "elsewhere", "pid": 0})


def test_no_runs(tmp_path):
    frame = results.list_runs(tmp_path / "none")
    assert len(frame) == 0 and {"run_id", "status", "summary", "path"} <= set(frame.columns)


def test_broken_and_foreign_manifests_cost_one_row_each(tmp_path):
    with results.start("good", {"a": 1}, results_dir=tmp_path):
        pass
    with results.start("good", {"a": [1, {"b": None}]}, results_dir=tmp_path):
        pass
    texts = {"half": '{"status": "ok", ', "list": "[]", "empty": "", "binary": "\x00"}
    texts["other"] = json.dumps({"schema_version": "v9", "status": "ok", "params": [1], "duration_s": "long", "new": 1})
    texts["odd"] = json.dumps({"status": 5, "run_id": None, "summary": "text"})
    for name, text in texts.items():
        folder = tmp_path / "bad" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(text)
    frame = results.list_runs(tmp_path).set_index("run_id")
    assert len(frame) == 8 and set(frame["experiment"]) == {"good", "bad"}
    assert {name: frame.at[name, "status"] for name in texts} == dict.fromkeys(texts, "failed") | {"other": "ok"}
    assert "cannot be read" in frame.at["half", "exception"]
    assert frame.at["other", "params"] == [1]


def test_the_same_second_gives_two_folders(tmp_path):
    runs = [results.start("train", {"a": 1}, results_dir=tmp_path) for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    for run in runs:
        run.finish()


def test_the_hash_is_of_the_configuration_alone():
    digest = manifest.config_hash("a", {"x": 1, "y": 2, "results": "r"}, 0)
    assert digest == manifest.config_hash("a", {"y": 2, "x": 1, "results": "s"}, 0)
    assert digest != manifest.config_hash("a", {"x": 1, "y": 2}, 1)


def test_errors_name_the_remedy(tmp_path):
    with pytest.raises(UserError, match="is not one of measured"):
        results.start("train", {}, results_dir=tmp_path, how="guessed")
    with pytest.raises(UserError, match="cannot be a name"):
        results.start("../up", {}, results_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder"):
        results.start("train", {}, results_dir=tmp_path / "file")
    with pytest.raises(UserError, match="no run 'zz'"):
        results.load("zz", tmp_path)
    for _ in range(2):
        results.start("train", {}, results_dir=tmp_path).finish()
    with pytest.raises(UserError, match="beginning of 2 runs"):
        results.load("2", tmp_path)


def test_a_failed_write_leaves_no_half_table(tmp_path):
    with results.start("train", {}, results_dir=tmp_path) as run:
        with pytest.raises(Exception, match=r".*"):
            run.table("bad", pd.DataFrame({"a": [object()]}))
        assert list((run.path / "tables").iterdir()) == []


def test_an_adopted_run_keeps_running_until_its_command_ends_it(tmp_path, monkeypatch):
    outer = results.start("quickstart", {"rows": 1, "lr": 0.1}, results_dir=tmp_path, via="nestlab run")
    monkeypatch.setenv("NESTLAB_RUN_DIR", str(outer.path))
    inner = results.start("other", {"rows": 2}, results_dir=tmp_path / "elsewhere", seed=3, how="emulated link")
    assert inner.path == outer.path and "NESTLAB_RUN_DIR" not in os.environ
    inner.finish("ok")
    content = results.load(outer).manifest
    assert (content["status"], content["reported"], inner.status) == ("running", "ok", "ok")
    assert content["params"] == {"rows": 2, "lr": 0.1} and content["how"] == "emulated link"
    outer.finish("failed", exception="a later cell")
    assert only(tmp_path)["status"] == "failed"
    second = results.start("other", {}, results_dir=tmp_path)
    assert second.path != outer.path
    second.finish()


def test_starting_a_run_loads_neither_torch_nor_pandas(tmp_path):
    code = """
import sys
from nestlab import results
results.start("train", {}, results_dir=sys.argv[1]).finish()
assert not {"torch", "pandas", "duckdb", "matplotlib"} & sys.modules.keys()
"""
    assert child(code, tmp_path).wait() == 0
