"""However a notebook ends, the run says so, the exit status agrees, and no process is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nestlab import results

pytestmark = pytest.mark.notebook

PARAMETERS = 'rows: int = 3\nlr: float = 0.1\nresults: str = "results"'
START = "from nestlab import results as store\nrun = store.start('x', {'rows': rows}, results_dir=results)"


@pytest.fixture
def write(tmp_path):
    """Writes a notebook whose middle cell is given and returns its path."""

    def _write(body: str, name: str = "10_case", parameters: str | None = PARAMETERS, last: str = "run.finish('ok')"):
        cells = [new_markdown_cell("# Case"), new_code_cell(START), new_markdown_cell("## Work"), new_code_cell(body)]
        if parameters is not None:
            cells.insert(1, new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=[*cells, new_code_cell(last)]), path)
        return path

    return _write


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """A temporary folder of this test's own, with a short name, which has to be empty again at the end."""
    folder = Path(tempfile.mkdtemp(prefix="nt-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    left = [path.name for path in folder.iterdir()]
    shutil.rmtree(folder)
    assert left == []


def begin(notebook: Path, *arguments: str, cwd: Path | None = None) -> subprocess.Popen:
    command = [sys.executable, "-m", "nestlab.cli", "run"]
    return subprocess.Popen(
        [*command, str(notebook), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd or notebook.parent,
    )


def the_run(folder: Path) -> results.LoadedRun:
    frame = results.list_runs(folder)
    assert len(frame) == 1
    return results.load(frame.at[0, "path"])


def assert_nothing_left(run: results.LoadedRun) -> None:
    """No process that was started for this run still lives."""
    deadline = time.monotonic() + 5
    while (left := _processes_of(run.path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("NESTLAB_RUN_DIR") == str(folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def test_success(write, tmp_path):
    notebook = write("import sys; print('hello', rows, lr); print('oops', file=sys.stderr); run.summary(rows=rows)")
    (tmp_path / "elsewhere").mkdir()
    process = begin(notebook, "-p", "rows=4", "-p", "lr=1e-3", "--results", "out", cwd=tmp_path / "elsewhere")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    run = the_run(tmp_path / "elsewhere" / "out")
    content = run.manifest
    assert (content["status"], content["via"], content["experiment"]) == ("ok", "nestlab run", "case")
    assert content["params"]["rows"] == 4 and content["params"]["lr"] == 1e-3 and content["exit_code"] == 0
    assert content["params"]["results"] == str(tmp_path / "elsewhere" / "out")
    assert content["summary"] == {"rows": 4}
    assert (run.path / "stdout.log").read_text() == "hello 4 0.001\n"
    assert (run.path / "stderr.log").read_text() == "oops\n"
    assert re.search(r"cell 4/5  Work  \d+\.\d s\n", out) and "ok after" in out and "\x1b" not in out
    executed = nbformat.read(run.path / "notebook.ipynb", 4)
    assert [cell.execution_count for cell in executed.cells if cell.cell_type == "code"] == [1, 2, 3, 4, 5]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["out"]  # no sockets in the current folder
    assert_nothing_left(run)


def test_a_python_error_fails(write, tmp_path):
    process = begin(write("raise ValueError('wrong shape')"))
    out, err = process.communicate()
    run = the_run(tmp_path / "results")
    assert process.returncode == 1 and "Work" in out and "FAILED" in out
    assert err.count("\n") == 1 and "ValueError: wrong shape" in err
    assert (run.manifest["status"], run.manifest["exception"]) == ("failed", "ValueError: wrong shape")
    assert "wrong shape" in (run.path / "notebook.ipynb").read_text()
    assert_nothing_left(run)


def test_a_notebook_that_reports_failure_or_nothing_or_fails_later_fails(write, tmp_path):
    started = [
        begin(write("pass", "reported", last="run.finish('failed', exception='no agreement')")),
        begin(write("pass", "silent", last="pass")),
        begin(write("run.finish('ok')", "late", last="1 / 0")),
    ]
    assert [process.wait() for process in started] == [1, 1, 1]
    frame = results.list_runs(tmp_path / "results").set_index("experiment")
    assert frame.at["reported", "exception"] == "no agreement"
    assert frame.at["late", "exception"] == "ZeroDivisionError: division by zero"
    assert list(frame["status"]) == ["failed", "failed", "failed"]


def test_a_killed_kernel_is_a_killed_run(write, tmp_path):
    """papermill's own metadata calls every cell of such a notebook completed."""
    process = begin(write("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    out, err = process.communicate()
    run = the_run(tmp_path / "results")
    assert process.returncode == 1 and "NOT FINISHED" in out and "the kernel died" in err
    assert run.manifest["status"] == "killed"
    assert "the kernel was ended by signal 9: Killed" in (run.path / "stderr.log").read_text()
    listed = subprocess.run(
        [sys.executable, "-m", "nestlab.cli", "results", "list", "--results", str(tmp_path / "results")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "killed" in listed.stdout and run.id in listed.stdout
    assert_nothing_left(run)


SLEEPS = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"]
subprocess.Popen(sleeper, start_new_session=True)
print("sleeping", flush=True)
time.sleep(99)
"""


def test_the_time_limit_ends_everything(write, tmp_path):
    process = begin(write(SLEEPS), "--timeout", "4")
    began = time.monotonic()
    _, err = process.communicate()
    run = the_run(tmp_path / "results")
    assert process.returncode == 124 and "time limit of 4 s" in err and time.monotonic() - began < 15
    assert run.manifest["status"] == "timeout"
    assert_nothing_left(run)


def test_an_interrupted_command_leaves_no_process(write, tmp_path):
    """Ctrl-C, SIGTERM, and the one that the command cannot see coming."""
    notebook = write(SLEEPS)
    ends = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    started = {number: begin(notebook, "--results", number.name) for number in ends}
    for number in ends:
        wait_for_text(tmp_path / number.name, "sleeping")
        started[number].send_signal(number)
    for number, code in ends.items():
        assert started[number].wait(20) == code
        run = the_run(tmp_path / number.name)
        assert run.manifest["status"] == "killed"
        assert_nothing_left(run)


def wait_for_text(folder: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(text in path.read_text() for path in folder.glob("*/*/stdout.log")):
            return
        time.sleep(0.1)
    pytest.fail(f"'{text}' never appeared")


def test_the_parameter_results_is_where_the_run_goes(tmp_path, capsys):
    from nestlab import cli
    from nestlab.cli.run import _results

    assert _results(None, {"results": "there"}) == Path("there")
    assert _results(Path("there"), {"results": "there"}) == Path("there")
    assert _results(Path("here"), {}) == Path("here")
    assert cli.main(["run", "any.ipynb", "--results", "here", "-p", "results=there"]) == 2
    assert "--results here and -p results=there differ" in capsys.readouterr().err


def test_a_wrong_parameter_fails_before_a_run_exists(write, tmp_path):
    for argument, message in [
        ("row=4", "did you mean 'rows'?"),
        ("rows=abc", "is of type int"),
        ("rows", "name=value"),
    ]:
        process = begin(write("pass"), "-p", argument)
        out, err = process.communicate()
        assert (process.returncode, out) == (2, "")
        assert err.startswith("nestlab: error: ") and message in err and err.count("\n") == 1
    process = begin(write("pass", parameters=None), "-p", "rows=4")
    assert "no cell tagged 'parameters'" in process.communicate()[1] and process.returncode == 2
    process = begin(write("pass"), "--kernel", "no-such-kernel")
    assert "no kernel named 'no-such-kernel'" in process.communicate()[1] and process.returncode == 2
    assert not (tmp_path / "results").exists()


def test_four_at_once_all_finish(write, tmp_path):
    """More than there are cores: each has the kernel, the ports and the folder of its own."""
    notebook = write("run.summary(rows=rows)")
    started = [begin(notebook, "-p", f"rows={rows}") for rows in (1, 2, 3, 4)]
    assert [process.wait() for process in started] == [0] * 4
    frame = results.list_runs(tmp_path / "results")
    assert list(frame["status"]) == ["ok"] * 4
    assert sorted(summary["rows"] for summary in frame["summary"]) == [1, 2, 3, 4]


def test_the_kernel_is_this_interpreter_whatever_is_installed(write, tmp_path, monkeypatch):
    foreign = tmp_path / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text('{"argv": ["false"], "display_name": "foreign", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    process = begin(write("import sys; run.summary(python=sys.executable)"))
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert os.path.samefile(the_run(tmp_path / "results").manifest["summary"]["python"], sys.executable)
