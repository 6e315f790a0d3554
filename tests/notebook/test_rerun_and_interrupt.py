"""A cell that is run again or interrupted leaves no open run, process or thread; many at once all finish."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from driving import QUICKSTART, kernel, module, write_notebook

from nestlab import results

pytestmark = pytest.mark.notebook

START = "from nestlab import results\nrun = results.start('light', {'rows': 3})"


def runs(folder: Path) -> list[tuple[str, str | None]]:
    frame = results.list_runs(folder / "results")
    return list(zip(frame["status"], frame["exception"], strict=True))


def test_a_cell_that_is_run_again_ends_what_it_left_open(tmp_path):
    with kernel(tmp_path) as shell:
        for _ in range(2):
            shell.run(START)
        (first, second) = runs(tmp_path)
        assert second == ("running", None)
        assert first[0] == "killed" and first[1].startswith("superseded by ") and "run again" in first[1]
        shell.run("other = results.start('light', {'rows': 4})")  # another cell may hold a run of its own
        assert [status for status, _ in runs(tmp_path)] == ["killed", "running", "running"]
        shell.run("run.finish(); other.finish()")
        assert [status for status, _ in runs(tmp_path)] == ["killed", "ok", "ok"]
        shell.run(START)
        assert [status for status, _ in runs(tmp_path)] == ["killed", "ok", "ok", "running"]


def test_an_edited_cell_is_still_the_same_cell(tmp_path):
    with kernel(tmp_path, saved_as=tmp_path / "a.ipynb") as shell:
        shell.run(START)
        shell.run(START.replace("3", "5"))
        assert [status for status, _ in runs(tmp_path)] == ["killed", "running"]


def test_two_runs_of_one_cell_stay_open(tmp_path):
    with kernel(tmp_path) as shell:
        shell.run(f"{START}\nsecond = results.start('light', {{'rows': 3}})\nrun.finish(); second.finish()")
        assert [status for status, _ in runs(tmp_path)] == ["ok", "ok"]


def test_a_folder_that_somebody_removed_does_not_stop_the_next_run(tmp_path):
    with kernel(tmp_path) as shell:
        shell.run(START)
        assert shell.run("import shutil; shutil.rmtree(run.path)")["status"] == "ok"
        assert shell.run(START)["status"] == "ok" and shell.run("run.finish()")["status"] == "ok"
    assert runs(tmp_path) == [("ok", None)]


def interrupt(shell, code: str, folder: Path) -> dict:
    """Interrupts a cell once it has touched a file named `busy`."""
    identity = shell.send(code)
    deadline = time.monotonic() + 60
    while not (folder / "busy").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    shell.manager.interrupt_kernel()
    return shell.reply(identity)


BUSY = "import pathlib, time\npathlib.Path('busy').touch()\ntime.sleep(60)"


def test_an_interrupted_cell_is_a_killed_run_unless_the_notebook_goes_on(tmp_path):
    with kernel(tmp_path) as shell:
        shell.run(START)
        assert interrupt(shell, BUSY, tmp_path)["ename"] == "KeyboardInterrupt"
        assert runs(tmp_path) == [("killed", "KeyboardInterrupt in a cell")]
        shell.run("run.finish()")
        assert runs(tmp_path) == [("ok", None)]
        shell.run(START)
        (tmp_path / "busy").unlink()
        interrupt(shell, BUSY, tmp_path)
    assert runs(tmp_path) == [("ok", None), ("killed", "KeyboardInterrupt in a cell")]


def test_a_kernel_that_ends_leaves_no_run_open_and_says_what_went_wrong(tmp_path):
    with kernel(tmp_path) as shell:
        shell.run(START)
        shell.run("1 / 0")
        assert runs(tmp_path) == [("running", None)]  # somebody may put it right and finish
    ((status, reason),) = runs(tmp_path)
    assert status == "failed" and reason.startswith("ZeroDivisionError") and "ended before" in reason


def test_a_cell_that_fails_under_papermill_is_a_failed_run(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "rows: int = 3", START, "1 / 0", "run.finish()")
    assert module("papermill", path, "out.ipynb", cwd=tmp_path, check=False).returncode == 1
    ((status, reason),) = runs(tmp_path)
    assert status == "failed" and "ZeroDivisionError" in reason


TRAIN = """
import pathlib
from nestlab.experiments import kept, quickstart as module
module.SCALES["long"] = dict(module.SCALES["smoke"], max_steps=100_000, evaluations=10_000)
def told(*words, **options):
    pathlib.Path("busy").touch()
kept.print = told
run = module.quickstart(dataset="criteo-synth", scale="long", data_root="none", results_dir="results")
"""


def test_an_interrupted_training_leaves_no_process_and_no_thread(tmp_path):
    threads = "len(__import__('threading').enumerate())"
    with kernel(tmp_path) as shell:
        warm = TRAIN.replace("max_steps=100_000, evaluations=10_000", "max_steps=20, evaluations=1")
        assert shell.run(warm + "\nrun.finish()")["status"] == "ok"
        before = int(shell.value(threads))
        (tmp_path / "busy").unlink()
        assert interrupt(shell, TRAIN, tmp_path)["ename"] == "KeyboardInterrupt"
        assert int(shell.value(threads)) == before
        assert psutil.Process(shell.manager.provisioner.pid).children(recursive=True) == []
        assert runs(tmp_path) == [("ok", None), ("killed", "KeyboardInterrupt")]
        pid = shell.manager.provisioner.pid
    assert not psutil.pid_exists(pid)


def start_at_once(notebook: Path, folder: Path, *words: str) -> list[int]:
    command = [sys.executable, "-m", "nestlab.cli", "run", str(notebook), *words]
    started = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(8)
    ]
    return [process.wait() for process in started]


@pytest.mark.slow
def test_eight_at_once_all_finish(tmp_path):
    """Its fast neighbour is `test_four_at_once_all_finish` of the runner's tests."""
    parameters = 'rows: int = 3\nresults: str = "results"'
    start = "from nestlab import results as store\nrun = store.start('light', {'rows': rows}, results_dir=results)"
    light = write_notebook(tmp_path / "light.ipynb", parameters, start, "run.finish()")
    assert start_at_once(light, tmp_path) == [0] * 8
    assert runs(tmp_path) == [("ok", None)] * 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_quickstarts_at_once_all_finish_with_equal_figures(tmp_path):
    words = ["-p", "scale=smoke", "-p", "dataset=criteo-synth", "-p", f"data_root={tmp_path}"]
    assert start_at_once(QUICKSTART, tmp_path, *words) == [0] * 8
    frame = results.list_runs(tmp_path / "results")
    assert list(frame["status"]) == ["ok"] * 8
    assert len({summary["auc"] for summary in frame["summary"]}) == 1
