"""Every notebook of the suite runs at its smallest scale, from another folder, and leaves a complete run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nestlab import results
from nestlab.notebook import parameters

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
SHARED = {"dataset", "data_root", "scale", "device", "backend", "world_size", "seed", "results"}

by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


@by_name
def test_it_declares_the_shared_parameters(notebook):
    declared = parameters.declared(parameters.read_notebook(notebook))
    assert declared.keys() >= SHARED
    assert all(declared[name].kinds or declared[name].choices for name in SHARED)


@by_name
@pytest.mark.notebook
def test_it_runs_without_real_data_and_says_so(notebook, tmp_path):
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-m", "nestlab.cli", "run", str(notebook), "-p", "scale=smoke"]
    done = subprocess.run([*command, "-p", "data_root=data"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    frame = results.list_runs(tmp_path / "results")
    own = frame[frame["via"] == "nestlab run"].iloc[0]
    assert own["status"] == "ok" and own["dataset"]["kind"] == "synthetic" and own["summary"]
    run = results.load(own["path"])
    assert run.tables
    assert pictures(run.path / "notebook.ipynb") == len(list((run.path / "figures").glob("*.png"))) > 0


def pictures(notebook: Path) -> int:
    """How many pictures a reader of the executed notebook sees."""
    cells = parameters.read_notebook(notebook)["cells"]
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
