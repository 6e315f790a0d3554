"""Committed notebooks are stripped, and the command that strips them takes only what nobody wrote."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from nestlab.notebook import clean

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_are_clean(path):
    assert clean.faults(clean.read(path)) == []


@pytest.fixture
def used(tmp_path) -> Path:
    """A notebook as papermill and a front end leave it."""
    output = new_output("stream", text="seen")
    cells = [
        new_markdown_cell("# Title", metadata={"jp-MarkdownHeadingCollapsed": True}),
        new_code_cell("a: int = 1", metadata={"tags": ["parameters"], "papermill": {"status": "completed"}}),
        new_code_cell("# Parameters\na = 2", metadata={"tags": ["injected-parameters"]}),
        new_code_cell(
            "print(a)", outputs=[output], execution_count=3, metadata={"execution": {"iopub.execute_input": "2026"}}
        ),
    ]
    kernel = {"name": "mine", "display_name": "Mine", "language": "python"}
    metadata = {"kernelspec": kernel, "papermill": {}, "language_info": {"name": "python", "version": "3.11.2"}}
    path = tmp_path / "used.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


def test_every_fault_is_named(used, capsys):
    before = used.read_bytes()
    assert clean.main(["--check", str(used)]) == 1
    out, err = capsys.readouterr()
    for part in ("cell 1: has metadata jp-", "cell 2: has metadata papermill", "cell 3: was put there by papermill"):
        assert part in out
    for part in (
        "cell 4: has outputs",
        "cell 4: has an execution count",
        "another kernelspec",
        "another language_info",
    ):
        assert part in out
    assert "python -m nestlab.notebook.clean" in err and used.read_bytes() == before


def test_cleaning_keeps_what_the_author_wrote(used, capsys):
    ids = [cell["id"] for cell in clean.read(used)["cells"]]
    assert clean.main([str(used)]) == 0
    notebook = clean.read(used)
    assert clean.faults(notebook) == [] and notebook["metadata"] == clean.METADATA
    assert [cell["source"] for cell in notebook["cells"]] == ["# Title", "a: int = 1", "print(a)"]
    assert [cell["id"] for cell in notebook["cells"]] == [ids[0], ids[1], ids[3]]
    assert notebook["cells"][1]["metadata"] == {"tags": ["parameters"]}
    before = used.read_bytes()
    assert clean.main([str(used)]) == 0 and used.read_bytes() == before
    assert capsys.readouterr().out.count("cleaned") == 1


def test_what_is_no_notebook_stays_as_it_is(used, tmp_path, capsys):
    (tmp_path / "text.ipynb").write_text("hello")
    before = used.read_bytes()
    assert clean.main([str(used), str(tmp_path / "text.ipynb")]) == 2
    assert "is not a Jupyter notebook" in capsys.readouterr().err and used.read_bytes() == before
    assert clean.main([str(tmp_path / "none.ipynb")]) == 2
