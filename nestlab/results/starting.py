"""How a run begins: a new folder whose manifest says `running`, or the one that `nestlab run` has made already."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestlab import paths
from nestlab.errors import UserError
from nestlab.results import machine, manifest, open_runs, origin
from nestlab.results.run import Run, checked

# `nestlab run` creates the run before the notebook's kernel starts, and names its folder to the kernel here.
ADOPT = "NESTLAB_RUN_DIR"


def start(
    experiment: str,
    params: Mapping[str, Any],
    *,
    results_dir: str | Path = "results",
    seed: int | None = None,
    how: str = "measured",
    via: str | None = None,
    title: str | None = None,
) -> Run:
    """Begins a run and makes it visible at once, as `running`.

    In a notebook that `nestlab run` executes, the run that the command already created is taken over; further calls in
    the same process make runs of their own. `via` (library, nestlab run, papermill or notebook) is found out if None.
    In a notebook a relative `results_dir` goes by the rule of `nestlab.paths`, and a run that an earlier execution of
    the same cell left open ends as `killed`.

    Raises:
        UserError: a name cannot be a folder's, `how` is unknown, or the results folder cannot be written.
    """
    if how not in manifest.HOW:
        raise UserError(f"how='{how}' is not one of {', '.join(manifest.HOW)}")
    stated = {"params": dict(params), "seed": seed, "how": how, "title": title}
    if (adopted := _waiting()) is not None:
        return Run(adopted, _adopt(adopted, experiment, stated), adopted=True)
    found = origin.find() if via is None else origin.Origin(via, "stated")
    # A program's folder is the caller's own business; a notebook runs wherever its kernel was started.
    parent = Path(results_dir) if via is not None or found.via == "library" else paths.results_dir(results_dir)
    folder = _new_folder(parent, experiment, manifest.config_hash(experiment, params, seed))
    content = _first_manifest(folder.name, experiment, stated, found)
    manifest.write(folder, content)
    run = Run(folder, content)
    open_runs.opened(run)
    return run


def _first_manifest(run_id: str, experiment: str, stated: Mapping[str, Any], found: origin.Origin) -> dict[str, Any]:
    content = {
        "schema_version": manifest.SCHEMA_VERSION,
        "run_id": run_id,
        "experiment": experiment,
        "status": "running",
        **stated,
        "config_hash": manifest.config_hash(experiment, stated["params"], stated["seed"]),
        "dataset": None,
        "start": manifest.now().isoformat(),
        "end": None,
        "duration_s": None,
        "exit_code": None,
        "exception": None,
        "summary": {},
        "argv": sys.argv,
        "launcher_argv": machine.launcher(),
        "via": found.via,
        "via_because": found.because,
        "notebook": _notebook(found),
        "process": machine.this_process(),
    }
    return manifest.plain(content | machine.describe() | _world_size(stated["params"]))


def _notebook(found: origin.Origin) -> dict[str, Any] | None:
    """Which file is executed, as far as the kernel can know, and where papermill writes what came out."""
    if found.notebook is None:
        return None
    digest = hashlib.sha256(found.notebook.read_bytes()).hexdigest() if found.notebook.is_file() else None
    known = {"path": str(found.notebook), "sha256": digest}
    return known if found.output is None else known | {"output": str(found.output)}


def _waiting() -> Path | None:
    """The run that `nestlab run` made for this process, once; later runs of the process are runs of their own."""
    named = os.environ.pop(ADOPT, None)
    if not named:
        return None
    try:
        return Path(named) if manifest.read(Path(named)).get("status") == "running" else None
    except (OSError, ValueError):
        return None


def _adopt(folder: Path, experiment: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the run that `nestlab run` created with what only the notebook knows."""
    content = manifest.read(folder)
    params = content.get("params", {}) | stated["params"]
    seed = stated["seed"] if stated["seed"] is not None else content.get("seed")
    changes = {
        "params": params,
        "seed": seed,
        "how": stated["how"],
        "title": stated["title"] or content.get("title"),
        "config_hash": manifest.config_hash(content["experiment"], params, seed),
        "notebook_experiment": experiment,
        "kernel": machine.this_process(),
        "reported": "running",
    }
    return manifest.update(folder, changes | machine.describe() | _world_size(params))


def _world_size(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"world_size": params["world_size"]} if isinstance(params.get("world_size"), int) else {}


def _new_folder(results_dir: Path, experiment: str, digest: str) -> Path:
    parent = results_dir / checked(experiment)
    stem = f"{manifest.now():%Y%m%dT%H%M%SZ}-{digest[:8]}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):  # the same configuration may start twice in one second
            folder = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"cannot write results to {parent}: {error.strerror}; choose another folder") from None
    raise UserError(f"too many runs named {stem} in {parent}")
