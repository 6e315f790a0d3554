"""Every notebook of the suite runs at its smallest scale, from another folder, and leaves a complete run.

The quickstart does in test_three_ways.py, which runs it anyway.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from driving import QUICKSTART, require_complete

from nestlab.notebook import parameters

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
SHARED = {"dataset", "data_root", "scale", "device", "backend", "world_size", "seed", "results"}

by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


@by_name
def test_it_declares_the_shared_parameters(notebook):
    declared = parameters.declared(parameters.read_notebook(notebook))
    assert declared.keys() >= SHARED
    assert all(declared[name].kinds or declared[name].choices for name in SHARED)


@pytest.mark.notebook
@pytest.mark.parametrize("notebook", [n for n in NOTEBOOKS if n != QUICKSTART], ids=lambda path: path.stem)
def test_it_runs_without_real_data_and_says_so(notebook, tmp_path):
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-m", "nestlab.cli", "run", str(notebook), "-p", "scale=smoke"]
    done = subprocess.run([*command, "-p", "data_root=data"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in tmp_path.rglob("stderr.log"))
    require_complete(tmp_path / "results")
