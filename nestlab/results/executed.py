"""The executed notebook in the run folder, where it can be had; where not, the manifest says why.

`nestlab run` writes it there itself. Plain papermill writes it to a place of the caller's choice, and after the last
cell. Under a front end it is the browser that saves the notebook: what lies on the disk is copied.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestlab.files import temporary_name
from nestlab.results import manifest

NAME = "notebook.ipynb"


def kept(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """What to add to the manifest at the end of a run."""
    via = content.get("via")
    if via == "papermill":
        output = (content.get("notebook") or {}).get("output")
        return _absent(f"papermill writes it to {output or 'a place that the kernel is not told'}")
    if via == "notebook":
        return _copied(folder, (content.get("notebook") or {}).get("path"))
    if via == "nestlab run":
        found = (folder / NAME).is_file()
        return {"executed_notebook": {"file": NAME}} if found else _absent("papermill did not write it")
    return {}


def _copied(folder: Path, named: str | None) -> dict[str, Any]:
    if named is None:
        return _absent("the kernel is not told which file it executes")
    source = Path(named)
    temporary = temporary_name(folder / NAME)
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(folder / NAME)
        saved = datetime.datetime.fromtimestamp(source.stat().st_mtime, datetime.UTC).isoformat(timespec="seconds")
    except OSError as error:
        return _absent(f"{source} cannot be copied: {error.strerror}")
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "executed_notebook": {"file": NAME, "saved": saved, "note": "as it was last saved; later output is missing"}
    }


def _absent(reason: str) -> dict[str, Any]:
    return {"executed_notebook": {"file": None, "reason": reason}}
