"""Where a relative path leads, so that the same notebook runs from any folder.

The rule, in the order in which it is tried:

1. an absolute path, or one that begins with `~`, is what it says;
2. a relative path that exists below the current folder is meant from there, as everywhere;
3. else it is meant from the project's folder, the nearest one above the current folder with a `pyproject.toml`: a
   notebook that JupyterLab runs in `notebooks/` then finds `datasets/` and writes to `results/` beside it;
4. data that is in neither place is looked for in the project above the notebook itself, where that is known: a job that
   runs in another folder finds what lies beside its notebook;
5. else it is meant from the current folder.

What is written never goes by rule 4: results land where their reader stands, unless that is inside a project.
"""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_FILE = "pyproject.toml"

# The notebook of this process, for rule 4; `nestlab run` says it to the kernel.
NOTEBOOK = "NESTLAB_NOTEBOOK"


def data_root(given: str | Path) -> Path:
    """The folder of the data that a notebook or a command was given."""
    path = Path(given).expanduser()
    here = Path.cwd()
    notebook = _notebook()
    projects = [project(here), project(notebook.parent) if notebook else None]
    places = [here, *(place for place in projects if place is not None)]
    return next((place / path for place in places if (place / path).exists()), path)


def results_dir(given: str | Path = "results") -> Path:
    """The folder of all runs that a notebook was given."""
    path = Path(given).expanduser()
    if path.is_absolute() or path.exists():
        return path
    above = project(Path.cwd())
    return path if above is None else above / path


def _notebook() -> Path | None:
    if named := os.environ.get(NOTEBOOK):
        return Path(named)
    from nestlab.results import origin

    return origin.find().notebook


def project(folder: Path) -> Path | None:
    """The nearest folder with a `pyproject.toml`, from this one upwards."""
    folder = folder.absolute()
    return next((place for place in (folder, *folder.parents) if (place / PROJECT_FILE).is_file()), None)
