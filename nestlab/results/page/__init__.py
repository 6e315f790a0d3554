"""`results/index.html`: one page over all runs that opens from disk, without a server and without a network.

The page is a list of parts, each a title and HTML. A section is a function `(results_dir, runs)` that gives such a part
or None, and is named in SECTIONS as `module:function`: a package above this one can so add its own without being
imported here. What a section puts into its HTML from outside it passes through `escape`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nestlab.errors import UserError
from nestlab.files import write_atomic
from nestlab.results.page.document import document
from nestlab.results.page.views import RunView, views

__all__ = ["FILE", "SECTIONS", "RunView", "escape", "write_index"]

FILE = "index.html"
SECTIONS = [
    "nestlab.results.page.trends:section",
    "nestlab.results.page.runs:section",
    "nestlab.experiments.claims.section:section",
]


def write_index(results_dir: str | Path = "results", extra: Sequence[tuple[str, str]] = ()) -> Path:
    """Writes the page in one step and returns its path. `extra` parts come after those of SECTIONS.

    Raises:
        UserError: the folder cannot be written.
    """
    root = Path(results_dir)
    runs = views(root)
    parts = [part for name in SECTIONS if (part := _part(name, root, runs)) is not None]
    text = document([*parts, *extra], runs)
    try:
        root.mkdir(parents=True, exist_ok=True)
        write_atomic(root / FILE, text.encode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot write {root / FILE}: {error.strerror}") from None
    return root / FILE


def _part(name: str, root: Path, runs: list[RunView]) -> tuple[str, str] | None:
    """A section; one that the user's files keep from being made says so, and the rest of the page stands."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(root, runs)
    except Exception as error:  # whatever it is, the other sections are not its hostages
        return module.rpartition(".")[2], f"<p>This section could not be made: {escape(str(error))}</p>"
