"""`nestlab results compare, export, prune, index`: readable, machine-readable, and careful."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "results"))
from made_runs import REAL, amend, finished, two_settings

from nestlab import cli


@pytest.fixture
def call(tmp_path, capsys):
    def _call(*words: str, status: int = 0) -> str:
        assert cli.main(["results", *words, "--results", str(tmp_path)]) == status
        captured = capsys.readouterr()
        if status == 2:
            assert captured.err.count("\n") == 1 and captured.err.startswith("nestlab: error: ")
        return captured.err if status == 2 else captured.out

    return _call


def test_compare_in_words(call, tmp_path):
    two_settings(tmp_path)
    lines = call("compare").splitlines()
    assert lines[0] == "quickstart · criteo-synth (SYNTHETIC, 100 rows) · measured"
    header = "metric  lr   n  mean  sd    95 % interval     difference  its 95 % interval   pairing"
    assert lines[2].split() == header.split()
    assert lines[3].split()[:5] == ["auc", "0.1", "3", "0.6", "0.1"]
    assert "[0.3516, 0.8484]" in lines[3] and "paired, 3 seeds" in lines[4] and "0.1" in lines[4]
    assert "difference: to lr=0.1 (the oldest), of the same metric" in lines


def test_compare_as_json(call, tmp_path):
    two_settings(tmp_path)
    made = json.loads(call("compare", "--json", "--metric", "auc", "--by", "lr"))
    assert made["caption"].endswith("measured") and [row["lr"] for row in made["rows"]] == [0.1, 0.2]
    assert made["rows"][0]["difference"] is None and made["rows"][1]["n"] == 3
    assert made["base"] == "lr=0.1 (the oldest)"


def test_a_name_given_twice_to_where_is_either_value(call, tmp_path):
    """Seen to fail where the last value was kept alone."""
    for lr in (0.1, 0.2, 0.3):
        finished(tmp_path, {"lr": lr}, 0, auc=lr)
    made = json.loads(call("compare", "--json", "--where", "lr=0.3", "--where", "lr=0.1"))
    assert [row["lr"] for row in made["rows"]] == [0.1, 0.3]


def test_a_bootstrap_over_few_seeds_is_refused(call, tmp_path):
    two_settings(tmp_path)
    told = call("compare", "--interval", "bootstrap", status=2)
    assert "a bootstrap over 3 seeds is far too sure; use 8 or --interval t" in told
    for lr in (0.1, 0.2):
        for seed in range(10, 20):
            finished(tmp_path, {"lr": lr, "scale": "smoke"}, seed, auc=lr + seed / 100)
    assert "95 % interval" in call("compare", "--interval", "bootstrap")


def test_one_seed_each_says_that_there_is_no_interval(call, tmp_path):
    finished(tmp_path, {"lr": 0.1}, 0, auc=0.5)
    finished(tmp_path, {"lr": 0.2}, 0, auc=0.6)
    out = call("compare")
    assert "every setting has one seed only: no interval" in out and "95 %" not in out


def test_a_run_on_other_data_is_refused(call, tmp_path):
    first, *_ = two_settings(tmp_path)
    other = finished(tmp_path, {"lr": 0.1}, 9, REAL, auc=0.6)
    assert "their data differs" in call("compare", status=2)
    assert "their data differs" in call("export", "compare", status=2)
    amend(other, status="killed", exception="KeyboardInterrupt")
    assert call("compare")
    assert "is no result: killed (KeyboardInterrupt)" in call("compare", first.id, other.id, status=2)


def test_export_of_a_comparison(call, tmp_path):
    two_settings(tmp_path)
    rows = list(csv.DictReader(io.StringIO(call("export", "compare", "--format", "csv"))))
    assert [row["lr"] for row in rows] == ["0.1", "0.2"] and float(rows[0]["mean"]) == pytest.approx(0.6)
    assert "SYNTHETIC" in rows[0]["source"] and "measured" in rows[0]["source"]
    assert rows[0]["source"].endswith("; differences to lr=0.1 (the oldest)")
    text = call("export", "compare")
    assert text.startswith("**quickstart · criteo-synth (SYNTHETIC, 100 rows) · measured**\n\n| metric | lr | n |")
    assert "| --- | ---: | ---: |" in text and "[0.3516, 0.8484]" in text
    latex = call("export", "compare", "--format", "latex")
    assert r"\caption{Quickstart $\cdot$ criteo-synth (SYNTHETIC, 100 rows) $\cdot$ measured." in latex
    assert r"95 \% interval" in latex and r"\begin{tabular}{lrrrrrrrl}" in latex


def test_export_of_a_run(call, tmp_path):
    run = finished(tmp_path, {"lr": 0.1}, 0, auc=0.71234567, samples_per_s=123456.7, under_score="a|b")
    text = call("export", run.id)
    assert "| auc | 0.7123 |" in text and "| samples\\_per\\_s | 123,457 |" in text and "a\\|b" in text
    assert "SYNTHETIC" in text and "measured" in text
    table = call("export", run.id, "--table", "steps", "--format", "csv")
    assert table.splitlines()[0] == "step,seed,loss,source" and "0.25" in table
    out = tmp_path / "table.tex"
    assert call("export", run.id, "--format", "latex", "-o", str(out)) == f"written to {out}\n"
    assert r"samples\_per\_s & 123,457 \\" in out.read_text()
    amend(run, status="failed")
    assert "the run is failed: no result" in call("export", run.id)


def test_export_refuses_what_makes_no_sense(call, tmp_path):
    run, *_ = two_settings(tmp_path)
    assert "no table 'x': it has steps" in call("export", run.id, "--table", "x", status=2)
    assert "--table goes with one run" in call("export", "compare", "--table", "steps", status=2)
    assert "one run at a time" in call("export", run.id, run.id, status=2)
    assert "go with: nestlab results export compare" in call("export", run.id, "--by", "lr", status=2)
    assert "cannot write" in call("export", run.id, "-o", str(tmp_path / "none" / "f"), status=2)
    assert "--where x is not of the form" in call("compare", "--where", "x", status=2)
    assert "not both" in call("compare", run.id, "--where", "lr=0.1", status=2)


def test_list_says_scale_and_model_and_takes_a_choice(call, tmp_path):
    """What would break it: `head` in place of `tail`, or a scale that is shown as it is."""
    finished(tmp_path, {"scale": "quick", "models": ["din", "dlrm"]}, 0, auc=0.5)
    amend(finished(tmp_path, {"scale": "smoke", "model": "hstu"}, 1, auc=0.6), start="2999-01-01T00:00:00+00:00")
    header, first, last = (line.split() for line in call("list").splitlines())
    assert (
        header[3:5] == ["scale", "model"] and first[3:6] == ["quick", "2", "models"] and last[3:5] == ["SMOKE", "hstu"]
    )
    assert [row["seed"] for row in json.loads(call("list", "--last", "1", "--json"))] == [1]
    assert call("list", "--experiment", "quickstart").count("\n") == 3
    assert "no run of experiment 'x' in" in call("list", "--experiment", "x", status=2)
    assert "--last 0: give a number" in call("list", "--last", "0", status=2)


def test_on_a_terminal_a_line_ends_at_its_width(call, tmp_path, monkeypatch):
    finished(tmp_path, {}, 0, **{f"figure_{number}": 0.5 for number in range(40)})
    assert "figure_39=0.5" in call("list")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    lines = call("list").splitlines()
    assert len(lines[1]) == 140 and lines[1].endswith("…") and "figure_0=0.5" in lines[1]


def test_a_folder_that_is_no_run_is_named_so(call, tmp_path):
    told = call("show", str(tmp_path), status=2)
    assert f"{tmp_path} is a folder without manifest.json: no run" in told


@pytest.fixture
def old_runs(tmp_path) -> dict[str, Path]:
    """Runs of every kind: `old_` ones are from the year 2000."""
    made = {}
    for name in ("old_ok", "old_failed", "old_killed", "old_timeout", "new_failed"):
        run = finished(tmp_path, {}, 0, auc=0.5)
        changes = {"start": "2000-01-01T00:00:00+00:00"} if name.startswith("old") else {}
        amend(run, status=name.split("_")[1], **changes)
        made[name] = run.path
    for name, text in {"foreign": '{"status": "archived", "start": "2000-01-01"}', "broken": "{"}.items():
        made[name] = tmp_path / "quickstart" / name
        made[name].mkdir()
        (made[name] / "manifest.json").write_text(text)
    made["reference"] = tmp_path / "reference" / "published"
    made["reference"].mkdir(parents=True)
    (made["reference"] / "manifest.json").write_text('{"status": "failed", "start": "2000-01-01T00:00:00+00:00"}')
    return made


def left(runs: dict[str, Path]) -> set[str]:
    return {name for name, path in runs.items() if path.exists()}


def test_prune_takes_only_old_runs_that_are_no_results(call, old_runs, tmp_path):
    before = left(old_runs)
    assert "3 would be removed" in call("prune", "--dry-run") and left(old_runs) == before
    assert "nobody is there to answer: add --yes" in call("prune", status=2) and left(old_runs) == before
    assert "is 7 days old (--older-than)" in call("prune", "--experiment", "other", "--yes")
    assert "2 would be removed" in call("prune", "--dry-run", "--keep", "2")
    assert "must be 0 or more" in call("prune", "--keep", "-1", status=2)
    (tmp_path / ".removed-leftover").mkdir()
    assert "3 removed" in call("prune", "--yes")
    assert left(old_runs) == {"old_ok", "new_failed", "foreign", "broken", "reference"}
    assert not list(tmp_path.glob(".removed-*"))
    assert "1 removed" in call("prune", "--yes", "--older-than", "0") and "nothing to remove" in call("prune")


@pytest.mark.parametrize(("answer", "status", "gone"), [("y", 0, 3), ("", 1, 0), ("no", 1, 0)])
def test_prune_asks_on_a_terminal(call, old_runs, monkeypatch, answer, status, gone):
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("builtins.input", lambda question: answer)
    before = len(left(old_runs))
    call("prune", status=status)
    assert before - len(left(old_runs)) == gone


def test_without_a_folder_named_it_is_the_project_s(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "notebooks").mkdir()
    run = finished(tmp_path / "results", {}, 0, auc=0.5)
    monkeypatch.chdir(tmp_path / "notebooks")
    assert cli.main(["results", "list"]) == 0
    assert run.id in capsys.readouterr().out
