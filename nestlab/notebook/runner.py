"""`nestlab run`: one notebook as one run of the store.

The command creates the run, starts a worker with papermill in a fresh process, watches it and the clock, ends whatever
is left of it, and only then writes the verdict. papermill's word is not enough: it calls a notebook whose kernel was
killed completed. A run is ok if the worker ended well *and* the notebook itself reported ok.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from nestlab import results
from nestlab.notebook import kernel, parameters
from nestlab.notebook.child import Terminated, Worker, sigterm_interrupts, uninterrupted
from nestlab.notebook.progress import Progress, cell_names
from nestlab.results import executed, manifest

EXIT = {"ok": 0, "failed": 1, "killed": 1, "timeout": 124}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        notebook: the notebook.
        given: parameters as text, checked against the notebook.
        results_dir: where the run folder goes.
        timeout: seconds for the whole notebook, or None.
        kernel: the name of its kernel; the default one is always this interpreter's.
    """

    notebook: Path
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    results_dir: Path = Path("results")
    timeout: float | None = None
    kernel: str = kernel.DEFAULT


@dataclasses.dataclass(frozen=True)
class Verdict:
    status: str
    reason: str | None
    exit_code: int


def run(request: Request) -> int:
    """Runs a notebook and returns the exit status: 0 ok, 1 failed, 124 timeout, 130 or 143 interrupted.

    Raises:
        UserError: the notebook, a parameter or the kernel is wrong; no run was created and no kernel started.
    """
    notebook = parameters.read_notebook(request.notebook)
    values = _values(notebook, request)
    kernel.check(request.kernel)
    with sigterm_interrupts():
        started = _start(request, notebook, values)
        progress = Progress(cell_names(notebook), _parameters_cell(notebook) if values else None)
        try:
            print(f"run {started.id}  {request.notebook.name}", flush=True)
            verdict = _attempt(request, started.path, values, progress)
        except KeyboardInterrupt as error:
            number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
            verdict = Verdict("killed", f"interrupted ({signal.Signals(number).name})", 128 + number)
        except BaseException as error:  # a fault of the command itself must not leave a run that seems to go on
            started.finish("failed", exception=f"nestlab run: {error!r}")
            raise
        with uninterrupted():
            _seal(started, verdict, progress)
    _show_all(request.results_dir)
    return verdict.exit_code


def _values(notebook: dict[str, Any], request: Request) -> dict[str, Any]:
    values = parameters.check(notebook, request.given, request.notebook.name)
    if "results" in parameters.declared(notebook):
        values.setdefault("results", str(request.results_dir.resolve()))
    return values


def _start(request: Request, notebook: dict[str, Any], values: dict[str, Any]) -> results.Run:
    params = parameters.resolved(notebook, values)
    # 00_quickstart.ipynb is the experiment `quickstart`: the number only orders the files.
    experiment = re.sub(r"^\d+_", "", request.notebook.stem)
    seed = params.get("seed") if isinstance(params.get("seed"), int) else None
    started = results.start(experiment, params, results_dir=request.results_dir, seed=seed, via="nestlab run")
    digest = hashlib.sha256(request.notebook.read_bytes()).hexdigest()
    manifest.update(started.path, {"notebook": {"path": str(request.notebook.resolve()), "sha256": digest}})
    return started


def _attempt(request: Request, folder: Path, values: dict[str, Any], progress: Progress) -> Verdict:
    deadline = None if request.timeout is None else time.monotonic() + request.timeout
    last: dict[str, Any] = {}
    code = None
    with Worker(folder, request.kernel, request.notebook) as worker:
        try:
            worker.execute(folder / executed.NAME, values)
            for event in worker.events(deadline):
                if event is None:
                    progress.tick()
                elif event["event"] == "end":
                    last = event
                else:
                    progress.event(event)
            code = worker.wait(deadline)
        except TimeoutError:
            reason = f"the time limit of {request.timeout:g} s was reached"
            return Verdict("timeout", reason, EXIT["timeout"])
    # Only here, when no process of the run is left, is what the notebook reported its last word.
    return _judge(code, last, manifest.read(folder))


def _judge(code: int, last: dict[str, Any], content: dict[str, Any]) -> Verdict:
    """Success needs both: a worker that ended well, and a notebook that said so itself."""
    reported = content.get("reported")
    if code < 0:
        return _failure("killed", f"the worker was ended by {signal.Signals(-code).name}")
    if last.get("status") != "ok":
        return _failure(last.get("status", "failed"), last.get("exception") or f"the worker ended with status {code}")
    if code != 0:
        return _failure("failed", f"the worker ended with status {code}")
    if reported == "ok":
        return Verdict("ok", None, EXIT["ok"])
    if reported is None:
        return _failure("failed", "the notebook ended without a run: it has to call nestlab.results.start and finish")
    if reported == "running":
        return _failure("killed", "the notebook's process went before its run was finished")
    return _failure(reported, content.get("exception"))


def _failure(status: str, reason: str | None) -> Verdict:
    return Verdict(status, reason, EXIT[status])


def _seal(started: results.Run, verdict: Verdict, progress: Progress) -> None:
    """Writes the verdict into the manifest as the notebook left it, and tells it."""
    progress.close()
    started.manifest = manifest.read(started.path)
    started.finish(verdict.status, exception=verdict.reason, exit_code=verdict.exit_code)
    seconds = started.manifest["duration_s"]
    print(f"{verdict.status} after {seconds:.1f} s  {_shown(started.path)}", flush=True)
    if verdict.status != "ok":
        print(
            f"nestlab: {verdict.status}: {verdict.reason}; see {_shown(started.path / 'stderr.log')}", file=sys.stderr
        )


def _show_all(results_dir: Path) -> None:
    """Brings the page over all runs up to date. A run is what it is, whether that succeeds or not."""
    try:
        results.write_index(results_dir)
    except Exception as error:
        print(f"nestlab: the page over all runs was not written: {error}", file=sys.stderr)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _parameters_cell(notebook: dict[str, Any]) -> int:
    """Where the parameters cell is; papermill puts what was given behind it."""
    tagged = (i for i, cell in enumerate(notebook["cells"]) if parameters.TAG in cell["metadata"].get("tags", []))
    return next(tagged, -1)
