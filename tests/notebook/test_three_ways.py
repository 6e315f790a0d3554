"""The same notebook by command, by papermill and by hand leaves the same run; the manifest says which way it was."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from driving import PROJECT, QUICKSTART, command, kernel, module, python, require_complete, write_notebook

from nestlab import results

pytestmark = pytest.mark.notebook

# What a clock or the operating system gives differs from run to run; everything else is equal to the bit.
TIMING_TABLES = {"exposed"}
TIMING_FIGURES = {"samples_per_s", "step_ms", "peak_host_bytes"}
# What says which way it was, when, and on which process; the rest of a manifest is the same.
OF_THE_WAY = {"via", "via_because", "argv", "notebook", "executed_notebook", "threads", "run_id"}
OF_THE_WAY |= {"start", "end", "duration_s", "process", "commit", "params", "summary"}
OF_NESTLAB_RUN = {"kernel", "reported", "notebook_experiment"}

PARAMETERS = 'rows: int = 3\nresults: str = "results"'
START = "from nestlab import results as store\nrun = store.start('light', {'rows': rows}, results_dir=results)"
PAPERMILL = "import sys, papermill; papermill.execute_notebook(sys.argv[1], 'out.ipynb', progress_bar=False"


@pytest.fixture
def light(tmp_path) -> Path:
    table = "import pandas\nrun.table('t', pandas.DataFrame({'a': range(rows)}))"
    return write_notebook(tmp_path / "books" / "light.ipynb", PARAMETERS, START, table, "run.finish()")


def only(folder: Path) -> results.LoadedRun:
    frame = results.list_runs(folder)
    assert list(frame["status"]) == ["ok"]
    return results.load(frame.at[0, "path"])


def origin(tmp_path: Path) -> tuple[str, str]:
    content = only(tmp_path / "results").manifest
    return content["via"], content["via_because"]


def test_the_command_line_of_papermill(light, tmp_path):
    module("papermill", light, "out.ipynb", "-k", "python3", cwd=tmp_path)
    assert origin(tmp_path) == ("papermill", "the command line of the process that runs the kernel")
    content = only(tmp_path / "results").manifest
    assert content["notebook"]["path"] == str(light) and len(content["notebook"]["sha256"]) == 64
    assert content["executed_notebook"] == {"file": None, "reason": f"papermill writes it to {tmp_path / 'out.ipynb'}"}


def test_papermill_in_a_process_of_another_name(light, tmp_path):
    """As a scheduler's worker calls it: nothing of its command line says papermill."""
    (tmp_path / "worker.py").write_text(f"{PAPERMILL}, parameters={{'rows': 4}})")
    command([sys.executable, "worker.py", light], tmp_path)
    assert origin(tmp_path) == ("papermill", "a cell of injected parameters ran")
    content = only(tmp_path / "results").manifest
    assert content["params"] == {"rows": 4} and "not told" in content["executed_notebook"]["reason"]


def test_papermill_without_parameters_in_a_process_of_another_name(light, tmp_path):
    (tmp_path / "worker.py").write_text(f"{PAPERMILL})")
    command([sys.executable, "worker.py", light], tmp_path)
    via, because = origin(tmp_path)
    # A kernel that is slow to answer is asked again, and the sign is gone; then the manifest says that none was seen.
    assert (via, because) in [
        ("papermill", "the kernel was asked for its description once"),
        ("notebook", "executed by a program that shows no sign of papermill"),
    ]


def test_papermill_that_was_called_from_a_notebook(light, tmp_path):
    """The inner kernel inherits the name of the outer one's notebook."""
    call = "import papermill\npapermill.execute_notebook(str(light), 'out.ipynb', parameters={'rows': 4})"
    with kernel(tmp_path, saved_as=tmp_path / "outer.ipynb") as outer:
        assert outer.run(f"light = {str(light)!r}\n{call}")["status"] == "ok"
    assert origin(tmp_path)[0] == "papermill"


def test_papermill_that_injects_its_paths(light, tmp_path):
    module("papermill", light, "out.ipynb", "--inject-paths", cwd=tmp_path)
    assert origin(tmp_path) == ("papermill", "PAPERMILL_* variables")
    assert only(tmp_path / "results").manifest["notebook"]["output"] == str(tmp_path / "out.ipynb")


def test_nbconvert_is_not_papermill(light, tmp_path):
    pytest.importorskip("nbconvert")
    module("jupyter-nbconvert", "--execute", "--to", "notebook", light, cwd=tmp_path)
    (found,) = tmp_path.rglob("manifest.json")
    content = results.load(found.parent).manifest
    assert (content["status"], content["via"]) == ("ok", "notebook") and "nbconvert" in content["via_because"]


def test_run_all_by_a_client(light, tmp_path):
    with kernel(tmp_path) as shell:
        shell.run_all(light)
    assert origin(tmp_path) == ("notebook", "a front end asked for the cell")
    kept = only(tmp_path / "results").manifest["executed_notebook"]
    assert kept == {"file": None, "reason": "the kernel is not told which file it executes"}


def test_run_all_in_jupyterlab_keeps_the_saved_notebook(light, tmp_path):
    with kernel(tmp_path, saved_as=light) as shell:
        shell.run_all(light)
    run = only(tmp_path / "results")
    kept = run.manifest["executed_notebook"]
    assert run.manifest["via"] == "notebook" and kept["file"] == "notebook.ipynb" and "last saved" in kept["note"]
    assert (run.path / "notebook.ipynb").read_bytes() == light.read_bytes()
    assert run.manifest["notebook"]["path"] == str(light)


def test_a_plain_program_is_a_library_user(tmp_path):
    python("from nestlab import results; results.start('light', {}).finish()", cwd=tmp_path)
    assert origin(tmp_path) == ("library", "no kernel")


@pytest.fixture(scope="module")
def ways(tmp_path_factory) -> dict[str, results.LoadedRun]:
    """The quickstart in three ways, each in a folder of its own."""
    folders = {way: tmp_path_factory.mktemp(way) for way in ("command", "papermill", "by-hand")}
    given = {"scale": "smoke", "data_root": str(folders["command"])}
    words = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
    command([sys.executable, "-m", "nestlab.cli", "run", QUICKSTART, *words], folders["command"])
    pairs = [part for name, value in given.items() for part in ("-p", name, value)]
    module("papermill", QUICKSTART, "out.ipynb", *pairs, cwd=folders["papermill"])
    with kernel(folders["by-hand"]) as shell:
        shell.run_all(QUICKSTART, **given)
    executed = nbformat.read(folders["papermill"] / "out.ipynb", 4)
    assert any(cell.get("outputs") for cell in executed.cells)
    return {way: only(folder / "results") for way, folder in folders.items()}


def certain(run: results.LoadedRun, name: str) -> pd.DataFrame:
    """A table without the one row that the operating system measures: the whole process's peak memory."""
    frame = run.table(name)
    return frame[~frame["how_obtained"].str.startswith("measured")] if "how_obtained" in frame else frame


def test_three_ways_leave_equal_tables(ways):
    first, *others = ways.values()
    assert len(first.tables) >= 4
    for other in others:
        assert other.tables == first.tables
        for name in set(first.tables) - TIMING_TABLES:
            pd.testing.assert_frame_equal(certain(first, name), certain(other, name), check_exact=True)
        for name in TIMING_TABLES:
            assert list(first.table(name).columns) == list(other.table(name).columns)


def test_three_ways_leave_the_same_folder_and_manifest(ways):
    logs = {"stdout.log", "stderr.log", "notebook.ipynb"}  # by command only: elsewhere output goes to the caller
    files = [{str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()} - logs for run in ways.values()]
    assert files[0] == files[1] == files[2] and "trace.json.gz" in files[0]
    assert [run.manifest["via"] for run in ways.values()] == ["nestlab run", "papermill", "notebook"]
    first, *others = (run.manifest for run in ways.values())
    for other in others:
        assert other.keys() == first.keys() - OF_NESTLAB_RUN
        for name in other.keys() - OF_THE_WAY:
            assert other[name] == first[name], name
        assert other["params"] == {name: value for name, value in first["params"].items() if name != "results"}
        equal = first["summary"].keys() - TIMING_FIGURES
        assert {name: other["summary"][name] for name in equal} == {name: first["summary"][name] for name in equal}


def test_the_command_without_real_data_leaves_a_complete_run(ways):
    require_complete(ways["command"].path.parents[1])


def test_the_project_is_not_written_to(ways):
    assert not list((PROJECT / "notebooks").glob("results"))
