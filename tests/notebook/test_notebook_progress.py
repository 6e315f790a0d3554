"""Lines for a log, and a live line for a terminal."""

from __future__ import annotations

import io

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nestlab.notebook import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def names():
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell("rows: int = 1", metadata={"tags": ["parameters"]}),
        new_code_cell("import os\nx = 1"),
        new_markdown_cell("text\n## Train it\nmore"),
        new_code_cell("# papermill_description=Warm\nfit()"),
        new_markdown_cell("## Plot"),
        new_code_cell("plot()"),
        new_code_cell(""),
    ]
    return progress.cell_names(new_notebook(cells=cells))


def test_a_cell_is_named_by_its_description_heading_or_first_line(names):
    assert names == {1: "parameters", 2: "Title", 4: "Warm", 6: "Plot", 7: "(empty)"}


def test_plain_lines_count_the_cell_that_papermill_adds(names):
    out = io.StringIO()
    shown = progress.Progress(names, 1, out)
    for index in (2, 3):
        shown.event({"event": "cell", "index": index})
        shown.event({"event": "done", "index": index, "seconds": 1.25, "status": "ok"})
    shown.event({"event": "cell", "index": 5})
    shown.event({"event": "done", "index": 5, "seconds": 2, "status": "error"})
    shown.event({"event": "cell", "index": 7})
    shown.close()
    assert out.getvalue().splitlines() == [
        "cell 2/6  given parameters  1.2 s",
        "cell 3/6  Title  1.2 s",
        "cell 4/6  Warm  2.0 s  FAILED",
        "cell 5/6  Plot  0.0 s  NOT FINISHED",
    ]


def test_a_log_hears_of_a_long_cell_about_once_a_minute(names, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    shown = progress.Progress(names, None, out)
    shown.event({"event": "cell", "index": 2})
    for second in range(150):
        clock[0] = float(second)
        shown.tick()
    assert out.getvalue().splitlines() == [
        "cell 2/5  Title  running for 61 s",
        "cell 2/5  Title  running for 121 s",
    ]


def test_a_terminal_sees_a_live_line(names):
    out = Terminal()
    shown = progress.Progress(names, None, out)
    shown.event({"event": "cell", "index": 2})
    assert out.getvalue() == "\r\x1b[Kcell 2/5  Title … 0 s"
