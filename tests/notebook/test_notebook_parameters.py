"""Names and types are checked against the notebook's own cell, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from nestlab.errors import UserError
from nestlab.notebook import parameters

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CELL = """
# What can be set.
batch_size: int = 64  # samples in a batch
lr: float = 0.1
scale: Literal["smoke", "quick"] = "quick"
shuffle: bool = True
rows: int | None = None
depth: Optional[int] = 2
name: str = "x"
plain = 3
parts = [1, 2]
unknown = None
computed: int = 2 * 3
model: str = "hstu"  # what is trained, one of hstu (histories, jagged), fuxi, row-wise
rule: str = "lru"  # one of the best, or none
place: str = (
    "cpu"  # one of cpu, cuda
)
policy: str = "lru"  # one of clock, fifo
"""


@pytest.fixture
def notebook():
    return new_notebook(cells=[new_code_cell("import os"), new_code_cell(CELL, metadata={"tags": ["parameters"]})])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch_size", "128", 128),
        ("lr", "1e-3", 1e-3),
        ("lr", "2", 2.0),
        ("scale", "smoke", "smoke"),
        ("shuffle", "false", False),
        ("shuffle", "True", True),
        ("rows", "7", 7),
        ("rows", "none", None),
        ("depth", "None", None),
        ("name", "12", "12"),
        ("name", "a=b", "a=b"),
        ("plain", "4", 4),
        ("parts", "[3]", [3]),
        ("unknown", "text", "text"),
        ("unknown", "5", 5),
        ("computed", "5", 5),
        ("model", "row-wise", "row-wise"),
        ("rule", "any", "any"),
        ("policy", "any", "any"),
    ],
)
def test_values_take_the_declared_type(notebook, name, text, value):
    found = parameters.check(notebook, {name: text}, "n.ipynb")[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("batch_sise", "64", "n.ipynb has no parameter 'batch_sise': did you mean 'batch_size'?"),
        ("zzz", "1", "has no parameter 'zzz': it has batch_size, lr"),
        ("batch_size", "abc", "'batch_size' is of type int; 'abc' is not"),
        ("batch_size", "1.5", "'batch_size' is of type int"),
        ("lr", "fast", "'lr' is of type float"),
        ("shuffle", "maybe", "'shuffle' is of type bool"),
        ("scale", "huge", "'scale' is one of smoke, quick, not 'huge'"),
        ("rows", "many", "'rows' is of type None or int"),
        ("model", "dlrm", "'model' is one of hstu, fuxi, row-wise, not 'dlrm'"),
        ("place", "tpu", "'place' is one of cpu, cuda, not 'tpu'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(notebook, name, text, message):
    with pytest.raises(UserError) as caught:
        parameters.check(notebook, {name: text}, "n.ipynb")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_the_notebook_will_use(notebook):
    values = parameters.resolved(notebook, {"lr": 0.5})
    assert values["lr"] == 0.5 and values["scale"] == "quick" and values["rows"] is None


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_s_scale_and_model_are_checked_before_it_starts(path):
    """What would break it: a comment without `one of`, which lets any text through to the kernel."""
    declared = parameters.declared(parameters.read_notebook(path))
    assert declared["scale"].choices == ("smoke", "quick", "paper")
    assert "model" not in declared or {"hstu", "fuxi", "sasrec"} <= set(declared["model"].choices)


def test_without_the_cell_nothing_can_be_given():
    empty = new_notebook(cells=[new_code_cell("x = 1")])
    assert parameters.check(empty, {}, "n.ipynb") == {}
    with pytest.raises(UserError, match="no cell tagged 'parameters'"):
        parameters.check(empty, {"x": "1"}, "n.ipynb")


def test_what_is_no_notebook_is_refused(tmp_path):
    with pytest.raises(UserError, match="no notebook at"):
        parameters.read_notebook(tmp_path / "none.ipynb")
    (tmp_path / "text.ipynb").write_text("hello")
    with pytest.raises(UserError, match="is not a Jupyter notebook"):
        parameters.read_notebook(tmp_path / "text.ipynb")
    with pytest.raises(UserError, match=r"no notebook at .*99.ipynb: .* has text.ipynb$"):
        parameters.read_notebook(tmp_path / "99.ipynb")
