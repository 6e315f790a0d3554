"""The command line: quick to answer, one line for an error, and one JSON object where one is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nestlab import cli, results
from nestlab.cli.text import aligned
from nestlab.errors import RankFailed, UserError


def call(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "nestlab.cli", *arguments], capture_output=True, text=True, cwd=cwd)


def fresh(code: str, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_answers_in_under_half_a_second():
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = call("--help")
        seconds.append(time.perf_counter() - began)
        assert done.returncode == 0
        for command in ("train", "run", "results", "data", "doctor", "bench", "techniques"):
            assert command in done.stdout
    assert min(seconds) < 0.5


def test_help_loads_nothing_heavy():
    code = """
import sys
from nestlab import cli
try:
    cli.main(["--help"])
except SystemExit:
    pass
heavy = {"torch", "pandas", "numpy", "numba", "duckdb", "papermill", "matplotlib", "torchrec"} & sys.modules.keys()
assert not heavy, heavy
"""
    fresh(code)


def test_version():
    done = call("--version")
    assert done.returncode == 0 and done.stdout.startswith("nestlab 0.")


def test_a_user_error_is_one_line_and_status_2(monkeypatch, capsys):
    def refuse(args):
        raise UserError("no such\n  thing: do that")

    monkeypatch.setattr("nestlab.cli.doctor.main", refuse)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "nestlab: error: no such thing: do that\n"


def test_an_interruption_is_one_line_and_status_130(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("nestlab.cli.doctor.main", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "nestlab: interrupted\n"


def test_what_an_interrupt_led_to_is_one(monkeypatch, capsys):
    """An import that was cut off, and a rank that waited for one that was interrupted; other errors stay errors."""

    def cut_off(args):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("half a module") from error

    def of_another(args):
        raise RankFailed("rank 1 was interrupted")

    def failed(args):
        raise RankFailed("rank 1 ended")

    for main in (cut_off, of_another):
        monkeypatch.setattr("nestlab.cli.doctor.main", main)
        assert cli.main(["doctor"]) == 130
        assert capsys.readouterr().err == "nestlab: interrupted\n"
    monkeypatch.setattr("nestlab.cli.doctor.main", failed)
    with pytest.raises(RankFailed):
        cli.main(["doctor"])


def test_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m nestlab.cli techniques | head -n 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_results_list_and_show(tmp_path, capsys):
    import pandas

    with results.start("train", {"lr": 0.1}, results_dir=tmp_path, seed=1) as run:
        run.dataset({"id": "criteo-synth", "kind": "synthetic", "rows": 10, "fingerprint": "f"})
        run.summary(auc=0.71234567)
        run.table("metrics", pandas.DataFrame({"step": range(30)}))
    assert cli.main(["results", "list", "--results", str(tmp_path)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == "run status experiment scale model dataset seconds how key figures"
    assert run.id in line and "criteo-synth (synthetic)" in line and "auc=0.7123" in line and "measured" in line
    assert cli.main(["results", "list", "--json", "--results", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["summary"], row["seed"]) == ("ok", {"auc": 0.71234567}, 1)
    assert cli.main(["results", "show", run.id, "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "table metrics: 30 rows" in shown and "… and 10 more" in shown and "lr=0.1" in shown
    assert cli.main(["results", "show", run.id, "--json", "--results", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == ["metrics"]


def test_results_of_nothing(tmp_path, capsys):
    assert cli.main(["results", "list", "--results", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out
    assert cli.main(["results", "list", "--json", "--results", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["results", "show", "x", "--results", str(tmp_path)]) == 2


NOISY = """
import os, sys
import nestlab.benchmarks
from nestlab import cli

def run(name):
    print("warming up")
    os.system("echo from C")
    return {"bench": name, "how": "measured", "rows": [{"a": 1.5}, {"a": float("nan"), "b": 2}], "summary": {"x": 2.0}}

nestlab.benchmarks.names = lambda: ("noisy",)
nestlab.benchmarks.run = run
sys.exit(cli.main(sys.argv[1:]))
"""


def test_bench_json_is_exactly_one_object():
    command = [sys.executable, "-c", NOISY, "bench", "noisy", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["rows"] == [{"a": 1.5}, {"a": None, "b": 2}]
    assert "warming up" in done.stderr and "from C" in done.stderr


def test_bench_lists_and_refuses():
    listed = subprocess.run([sys.executable, "-c", NOISY, "bench"], capture_output=True, text=True, check=True)
    assert listed.stdout == "noisy\n"
    shown = subprocess.run([sys.executable, "-c", NOISY, "bench", "noisy"], capture_output=True, text=True, check=True)
    assert "x: 2" in shown.stdout
    refused = subprocess.run([sys.executable, "-c", NOISY, "bench", "nosy"], capture_output=True, text=True)
    assert refused.returncode == 2 and "no benchmark 'nosy': there is noisy" in refused.stderr


def test_techniques(capsys, monkeypatch):
    assert cli.main(["techniques", "--json"]) == 0
    flags = {row["flag"] for row in json.loads(capsys.readouterr().out)}
    assert {"device_tier", "pipeline_depth", "dispatch"} <= flags
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["techniques"]) == 0
    told = capsys.readouterr().out
    assert flags <= set(re.findall(r"^(\w+)=", told, re.MULTILINE)) and "nestpipe: " in told
    assert max(map(len, told.splitlines())) <= 80


def test_data_synth_prepare_describe(tmp_path, capsys):
    assert cli.main(["data", "synth", "criteo", "--rows", "50", "--seed", "1", "--out", str(tmp_path / "raw")]) == 0
    assert str(tmp_path / "raw") in capsys.readouterr().out
    assert cli.main(["data", "prepare", "no-such", "--root", str(tmp_path)]) == 2
    assert "no-such" in capsys.readouterr().err


@pytest.mark.data
def test_data_prepare_and_describe_real_rows(tmp_path, real_data, capsys):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "criteo-1tb").symlink_to(real_data / "criteo-1tb")
    for command in ("prepare", "describe"):
        assert cli.main(["data", command, "criteo-1tb", "--root", str(tmp_path / "root")]) == 0
        assert "5,000" in (out := capsys.readouterr().out) or "5000" in out


def test_train_options_reach_training_under_its_own_names(monkeypatch):
    import dataclasses

    from nestlab.experiments import training
    from nestlab.training.recipe import TrainOptions

    given = {}
    monkeypatch.setattr(training, "train_from_options", lambda options: given.update(options) or 0)
    options = ["--steps", "5", "--lr", "1e-3", "--techniques", "pipeline_depth=1", "--export", "out"]
    assert cli.main(["train", *options]) == 0
    assert (given["max_steps"], given["lr"], given["techniques"]) == (5, 1e-3, "pipeline_depth=1")
    known = {field.name for field in dataclasses.fields(TrainOptions)}
    assert (
        set(given) - {"export", "results", "checkpoint", "checkpoint_every", "checkpoint_full_every", "restart"}
        <= known
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["train", "--steps", "0"], "train: --steps: 0: give a whole number of 1 or more; see nestlab train --help"),
        (["train", "--rows", "-5"], "train: --rows: -5: give a whole number of 1 or more"),
        (["train", "--history", "0"], "train: --history: 0: give a whole number of 1 or more"),
        (["train", "--batch-size", "many"], "train: --batch-size: many: give a whole number of 1 or more"),
        (["train", "--model", "bert"], "train: --model: invalid choice: 'bert' (choose from 'dlrm', 'dcnv2', "),
        (["train", "--frobnicate"], "train: no option '--frobnicate'; see nestlab train --help"),
        (["train", "--optimiser=sgd"], "train: no option '--optimiser'; did you mean '--optimizer'?"),
        (["results", "list", "all"], "results list: 'all' is one argument too many; see nestlab results list --help"),
        ([], "the following arguments are required: COMMAND; see nestlab --help"),
    ],
    ids=["steps", "rows", "history", "word", "model", "unknown", "near", "too many", "nothing"],
)
def test_a_slip_is_told_in_one_line(given, told, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(given)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"nestlab: error: {told}") and error.count("\n") == 1


def test_columns_are_aligned():
    assert aligned([["a", "b"], ["long", "c"]]) == "a     b\nlong  c"
