"""Says where a notebook is: one line a cell when it ends, and on a terminal a live line while it runs."""

from __future__ import annotations

import re
import sys
import time
from typing import Any, TextIO

from nestlab.notebook.parameters import TAG, source

_WIDTH = 60
_PLAIN_SECONDS = 60.0  # how often a log is told that a long cell still runs


def cell_names(notebook: dict[str, Any]) -> dict[int, str]:
    """A name for each code cell: papermill's description comment, else the heading above it, else its first line."""
    names, heading = {}, ""
    for index, cell in enumerate(notebook["cells"]):
        text = source(cell).strip()
        if cell.get("cell_type") == "markdown":
            headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
            heading = headings[-1] if headings else heading
        elif cell.get("cell_type") == "code":
            described = re.search(r"^#\s*papermill_description=(\S+)", text, re.MULTILINE)
            first = next((line for line in text.splitlines() if line.strip()), "(empty)")
            tagged = TAG in cell.get("metadata", {}).get("tags", [])
            names[index] = TAG if tagged else (described[1] if described else heading or first)[:_WIDTH]
            heading = heading if tagged else ""
    return names


class Progress:
    """Turns a worker's events into lines.

    papermill adds a cell with the parameters that were given, so positions move by one behind it; `shift_after` is the
    position of the cell it follows, or None.
    """

    def __init__(self, names: dict[int, str], shift_after: int | None, out: TextIO | None = None) -> None:
        self._names = names if shift_after is None else _shifted(names, shift_after)
        self._order = {index: number for number, index in enumerate(self._names, 1)}
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._current: tuple[int, float] | None = None
        self._next_plain = _PLAIN_SECONDS

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "cell":
            self._current = (event["index"], time.monotonic())
            self._next_plain = _PLAIN_SECONDS
            self.tick()
        elif event["event"] == "done":
            self._current = None
            failed = "" if event["status"] == "ok" else "  FAILED"
            self._write(f"{self._label(event['index'])}  {event['seconds']:.1f} s{failed}\n")

    def tick(self) -> None:
        """Refreshes the live line; elsewhere says about once a minute that a cell still runs."""
        if self._current is None:
            return
        index, began = self._current
        seconds = time.monotonic() - began
        if self._live:
            self._write(f"{self._label(index)} … {seconds:.0f} s")
        elif seconds > self._next_plain:
            self._next_plain += _PLAIN_SECONDS
            self._write(f"{self._label(index)}  running for {seconds:.0f} s\n")

    def close(self) -> None:
        """Names the cell that never ended, if there is one."""
        if self._current is not None:
            index, began = self._current
            self._current = None
            self._write(f"{self._label(index)}  {time.monotonic() - began:.1f} s  NOT FINISHED\n")

    def _label(self, index: int) -> str:
        return f"cell {self._order.get(index, '?')}/{len(self._order)}  {self._names.get(index, 'parameters')}"

    def _write(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}" if self._live else text)
        self._out.flush()


def _shifted(names: dict[int, str], after: int) -> dict[int, str]:
    moved = {index if index <= after else index + 1: name for index, name in names.items()}
    return dict(sorted((moved | {after + 1: "given parameters"}).items()))
