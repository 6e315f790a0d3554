"""Plain text for terminals and logs."""

from __future__ import annotations


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as columns two spaces apart; the last one is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    cells = ([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)
