"""Plain text for terminals and logs."""

from __future__ import annotations

import shutil
import sys
from typing import Any


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as columns two spaces apart; the last one is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    cells = ([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def fitted(text: str) -> str:
    """On a terminal every line cut with … at its width; whole where the output is piped or written to a file."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in text.splitlines())


def number(value: Any) -> str:
    """Four significant digits of what is no whole number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
