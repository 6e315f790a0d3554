"""A relative path leads to the same place from the project, from its notebooks, and from anywhere else where it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestlab import paths


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "project"
    (folder / "notebooks").mkdir(parents=True)
    (folder / "datasets").mkdir()
    (folder / "pyproject.toml").write_text("")
    return folder


def test_from_the_notebooks_folder(project, monkeypatch):
    monkeypatch.chdir(project / "notebooks")
    assert paths.data_root("datasets") == project / "datasets"
    assert paths.results_dir("results") == project / "results"


def test_what_is_there_comes_first(project, monkeypatch):
    (project / "notebooks" / "datasets").mkdir()
    (project / "notebooks" / "results").mkdir()
    monkeypatch.chdir(project / "notebooks")
    assert paths.data_root("datasets").resolve() == project / "notebooks" / "datasets"
    assert paths.results_dir("results") == Path("results")


def test_from_the_project_itself(project, monkeypatch):
    monkeypatch.chdir(project)
    assert paths.data_root("datasets").resolve() == project / "datasets"
    assert paths.results_dir().resolve() == project / "results"


def test_from_elsewhere_only_data_is_looked_for_beside_the_notebook(project, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert paths.data_root("datasets") == Path("datasets")
    monkeypatch.setenv(paths.NOTEBOOK, str(project / "notebooks" / "a.ipynb"))
    assert paths.data_root("datasets") == project / "datasets"
    assert paths.data_root("none") == Path("none")
    assert paths.results_dir("results") == Path("results")


def test_absolute_paths_and_home(project, monkeypatch):
    monkeypatch.chdir(project / "notebooks")
    monkeypatch.setenv("HOME", str(project))
    assert paths.data_root("/nowhere") == Path("/nowhere") and paths.results_dir("/nowhere") == Path("/nowhere")
    assert paths.results_dir("~/out") == project / "out" and paths.data_root("~/datasets") == project / "datasets"
