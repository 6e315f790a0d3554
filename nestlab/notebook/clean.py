"""Committed notebooks hold no outputs: `python -m nestlab.notebook.clean [--check] notebooks/*.ipynb`.

Without `--check` the files are cleaned in place; with it they are only looked at, and the exit status is 1 if one is
not clean. Clean means:

* no outputs, no execution counts, no widget state;
* nothing that papermill or a front end leaves behind (times, `papermill`, collapsed or injected cells);
* a neutral kernel (`python3`) and language (`python`, without a version), so that the notebook runs everywhere and two
  people's environments make no differences;
* what the author means to keep: tags, the source, attachments, cell ids.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import nbformat

from nestlab.errors import UserError
from nestlab.files import write_atomic

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_CELL_METADATA = ("tags", "slideshow")
_INJECTED = {"injected-parameters", "papermill-error-cell-tag"}


def faults(notebook: dict[str, Any]) -> list[str]:
    """What keeps a notebook from being clean, a line each."""
    found = [f"cell {number}: {fault}" for number, cell in enumerate(notebook["cells"], 1) for fault in _cell(cell)]
    return found + _other_metadata(notebook["metadata"])


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without anything that `faults` would name."""
    result = nbformat.from_dict(notebook)
    result["cells"] = [cell for cell in result["cells"] if not _INJECTED & _tags(cell)]
    for cell in result["cells"]:
        cell["metadata"] = nbformat.from_dict({k: v for k, v in cell["metadata"].items() if k in _CELL_METADATA})
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    result["metadata"] = nbformat.from_dict(METADATA)
    return result


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook in the current format.

    Raises:
        UserError: there is none, or it is not a notebook.
    """
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except Exception:  # nbformat raises whatever its parts raise
        raise UserError(f"{path} is not a Jupyter notebook") from None


def write(path: Path, notebook: nbformat.NotebookNode) -> None:
    write_atomic(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode("utf-8"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nestlab.notebook.clean", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("notebooks", metavar="NOTEBOOK", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if one is not clean")
    args = parser.parse_args(argv)
    try:
        return _check(args.notebooks) if args.check else _clean(args.notebooks)
    except UserError as error:
        print(f"nestlab: error: {error}", file=sys.stderr)
        return 2


def _check(paths: list[Path]) -> int:
    found = [f"{path}: {fault}" for path in paths for fault in faults(read(path))]
    for line in found:
        print(line)
    if found:
        print("not clean: python -m nestlab.notebook.clean puts it right", file=sys.stderr)
    return 1 if found else 0


def _clean(paths: list[Path]) -> int:
    for path, notebook in [(path, read(path)) for path in paths]:  # all are read before one is written
        if faults(notebook):
            write(path, cleaned(notebook))
            print(f"cleaned {path}")
    return 0


def _cell(cell: dict[str, Any]) -> list[str]:
    found = []
    if cell.get("outputs"):
        found.append("has outputs")
    if cell.get("execution_count") is not None:
        found.append("has an execution count")
    if _INJECTED & _tags(cell):
        found.append("was put there by papermill")
    extra = sorted(cell["metadata"].keys() - set(_CELL_METADATA))
    return [*found, f"has metadata {', '.join(extra)}"] if extra else found


def _other_metadata(metadata: dict[str, Any]) -> list[str]:
    wrong = [key for key in sorted(metadata.keys() | METADATA.keys()) if metadata.get(key) != METADATA.get(key)]
    return [f"its metadata has another {key} than a neutral one" for key in wrong]


def _tags(cell: dict[str, Any]) -> set[str]:
    return set(cell["metadata"].get("tags", []))


if __name__ == "__main__":
    sys.exit(main())
