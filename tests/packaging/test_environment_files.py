"""What a fresh machine needs: the two lists of requirements agree, and nothing hides or hard-wires anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml


def test_conda_environment_and_pyproject_agree(project):
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((project / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    extras = declared["optional-dependencies"]
    chosen = [*extras["test"], *extras["lab"], *extras["bench"]]
    assert pip["pip"] == [*declared["dependencies"], *chosen, "--editable ."]
    assert "python=3.11" in conda and "pip" in conda and declared["requires-python"] == ">=3.11"


def test_torchrec_and_fbgemm_stand_in_neither_file(project):
    for name in ("pyproject.toml", "environment.yml"):
        lines = (project / name).read_text().splitlines()
        stated = [line for line in lines if not line.strip().startswith("#")]
        assert not [line for line in stated if re.search(r"torchrec|fbgemm", line)]


def test_the_pins_agree(project):
    from nestlab.interop import versions

    requirements = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"torch=={versions.TORCH}" in requirements
    assert versions.mismatches(versions.TORCH, versions.TORCHREC, {versions.FBGEMM_CPU: versions.FBGEMM}) == []


def test_import_datasets_is_the_hugging_face_package(project):
    assert not (project / "datasets" / "__init__.py").exists()
    code = "import datasets; print(datasets.__version__, datasets.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    version, path = done.stdout.split(maxsplit=1)
    assert int(version.split(".")[0]) >= 4 and not path.startswith(str(project / "datasets"))


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torchrec", "fbgemm_gpu"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
"""


def test_nestlab_works_where_torchrec_cannot_be_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = """
import pkgutil, importlib, nestlab
from nestlab.interop import torchrec as bridge
usable, reason = bridge.available()
assert not usable and "torchrec" in reason or "fbgemm" in reason, reason
of_torchrec = "tiered tiered_optimizer tiered_given batch_form nestpipe baselines baseline_model baseline_plan".split()
of_torchrec = ["nestlab.interop." + name for name in of_torchrec]  # they build on it or run it
for module in pkgutil.walk_packages(nestlab.__path__, "nestlab."):
    if not module.name.endswith("__main__") and module.name not in of_torchrec:
        importlib.import_module(module.name)
for name in ("TieredEmbeddingBagCollection", "NestPipeTrainPipeline", "Baseline"):
    try:
        getattr(bridge, name)
    except nestlab.UserError as error:
        assert "torchrec" in str(error), error
    else:
        raise AssertionError(f"{name} is there without torchrec")
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for arguments in (["--help"], ["techniques"], ["results", "list", "--results", str(tmp_path)]):
        command = [sys.executable, "-m", "nestlab.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_only_the_bridge_imports_torchrec(project):
    found = [
        path.relative_to(project).as_posix()
        for path in (project / "nestlab").rglob("*.py")
        if re.search(r"^\s*(import|from) (torchrec|fbgemm_gpu)\b", path.read_text(), re.MULTILINE)
    ]
    assert all(name.startswith("nestlab/interop/") for name in found)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("target", ["help", "reproduce", "test", "test-full", "lab", "bench", "torchrec", "clean"])
def test_every_target_of_the_makefile_can_be_planned(project, target):
    done = subprocess.run(["make", "-n", target], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_reproduce_runs_all_and_then_fails(project, tmp_path):
    """With a stand-in for the environment: the first notebook fails, the second still runs, the status is not 0."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    shutil.copy(project / "Makefile", tmp_path)
    shutil.copy(project / "pyproject.toml", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    for name in ("00_a", "01_b"):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text("{}")
    script = '#!/bin/sh\necho "$@" >> calls\ncase "$*" in *00_a*) exit 1;; esac\n'
    for name in ("python", "nestlab"):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    command = ["make", "reproduce", "SCALE=smoke", "DATA=my data", "TORCH_INDEX=index"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode != 0 and "failed: notebooks/00_a.ipynb" in done.stderr
    assert calls[0].endswith("install --extra-index-url index -e .")
    assert "run notebooks/01_b.ipynb -p scale=smoke -p data_root=my data" in calls
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "installing" in done.stdout and "installing" not in again.stdout
