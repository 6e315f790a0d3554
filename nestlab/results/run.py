"""A run while it happens: a folder whose manifest says `running` first, and what became of it at the end."""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.results import machine, manifest

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# `nestlab run` creates the run before the notebook's kernel starts, and names its folder to the kernel here.
ADOPT = "NESTLAB_RUN_DIR"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]*")
_DATASET = ("id", "kind", "rows", "fingerprint", "title")


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

    Raises:
        UserError: a name cannot be a folder's, `how` is unknown, or the results folder cannot be written.
    """
    if how not in manifest.HOW:
        raise UserError(f"how='{how}' is not one of {', '.join(manifest.HOW)}")
    stated = {"params": dict(params), "seed": seed, "how": how, "title": title}
    if (adopted := _waiting()) is not None:
        return Run(adopted, _adopt(adopted, experiment, stated), adopted=True)
    folder = _new_folder(Path(results_dir), experiment, manifest.config_hash(experiment, params, seed))
    content = _first_manifest(folder.name, experiment, stated, via or _via())
    manifest.write(folder, content)
    return Run(folder, content)


class Run:
    """What `start` returns. As a context manager it is `ok` after a clean exit and `failed` after an exception.

    A run whose process is interrupted or terminated is marked `killed` where the process can still say so; where it
    cannot (SIGKILL), readers of the store see that the process is gone.
    """

    def __init__(self, path: Path, content: dict[str, Any], *, adopted: bool = False) -> None:
        self.path = path.resolve()
        self.manifest = content
        self._adopted = adopted
        self._finished = False
        self._pid = os.getpid()  # a forked child inherits handlers, and its end is not the run's
        self._catch_sigterm()
        atexit.register(self._at_exit)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def status(self) -> str:
        """What this process knows; the manifest of a run under `nestlab run` stays `running` until the command ends."""
        return self.manifest.get("reported") or self.manifest["status"]

    def dataset(self, info: Any) -> None:
        """Records what data the run used.

        Args:
            info: a mapping or an object with id, kind (real or synthetic), rows, fingerprint and title.
        """
        if dataclasses.is_dataclass(info) and not isinstance(info, type):
            info = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
        read = info.get if isinstance(info, Mapping) else lambda name: getattr(info, name, None)
        described = {name: read(name) for name in _DATASET}
        if described["kind"] not in ("real", "synthetic"):
            raise UserError(f"dataset '{described['id']}': kind must be real or synthetic, not {described['kind']!r}")
        self._update({"dataset": described})

    def table(self, name: str, frame: pandas.DataFrame) -> Path:
        """Writes `tables/<name>.parquet`."""
        return self._place(f"tables/{_checked(name)}.parquet", lambda path: frame.to_parquet(path))

    def figure(self, name: str, figure: Figure) -> Path:
        """Writes `figures/<name>.png`."""
        return self._place(
            f"figures/{_checked(name)}.png",
            lambda path: figure.savefig(path, format="png", dpi=120, bbox_inches="tight"),
        )

    def file(self, name: str, content: bytes | str | Path) -> Path:
        """Adds a file, such as `trace.json.gz`: its bytes, or a path to copy."""
        if isinstance(content, bytes):
            return self._place(_checked(name), lambda path: path.write_bytes(content))
        return self._place(_checked(name), lambda path: shutil.copyfile(content, path))

    def summary(self, **key_figures: Any) -> None:
        """Adds key figures, which `nestlab results list` shows."""
        self._update({"summary": self.manifest.get("summary", {}) | key_figures})

    def finish(self, status: str = "ok", *, exception: str | None = None, exit_code: int | None = None) -> None:
        """Ends the run; the first end counts."""
        if status not in manifest.STATUSES or status == "running":
            raise UserError(f"a run cannot finish as '{status}': use one of {', '.join(manifest.STATUSES[1:])}")
        if self._finished:
            return
        self._finished = True
        atexit.unregister(self._at_exit)
        self._restore_sigterm()
        if self._adopted:  # the command that owns the run has the last word: a later cell may still fail
            changes = {"reported": status, "exception": exception}
        else:
            changes = ending(self.manifest, status, exception, exit_code)
        if (accelerator := machine.accelerator()) is not None:  # torch may have been loaded since the start
            changes["accelerator"] = accelerator
        self._update(changes)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.finish("ok")
        elif isinstance(error, KeyboardInterrupt):
            self.finish("killed", exception="KeyboardInterrupt")
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            self.finish("ok")
        else:
            self.finish("failed", exception=describe(error))

    def _update(self, changes: Mapping[str, Any]) -> None:
        self.manifest = manifest.update(self.path, manifest.plain(changes))

    def _place(self, name: str, write: Any) -> Path:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = manifest.temporary_name(target)
        try:
            write(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and self.path.exists():
            self.finish("failed", exception="the process ended before the run was finished")

    def _catch_sigterm(self) -> None:
        # Only where nobody else listens: a handler of the program's own knows better what to do.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _restore_sigterm(self) -> None:
        mine = signal.getsignal(signal.SIGTERM) == self._on_sigterm
        if mine and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:
            self.finish("killed", exception="SIGTERM")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def ending(content: Mapping[str, Any], status: str, exception: str | None, exit_code: int | None) -> dict[str, Any]:
    """The manifest's fields that an end sets."""
    end = manifest.now()
    began = content.get("start")
    duration = None if began is None else (end - type(end).fromisoformat(began)).total_seconds()
    if exit_code is None:
        exit_code = 0 if status == "ok" else 1
    return {
        "status": status,
        "end": end.isoformat(),
        "duration_s": duration,
        "exit_code": exit_code,
        "exception": exception,
    }


def describe(error: BaseException) -> str:
    """An exception in one line, as Python's own last line puts it."""
    return "".join(traceback.format_exception_only(error)).strip()


def _first_manifest(run_id: str, experiment: str, stated: Mapping[str, Any], via: str) -> dict[str, Any]:
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
        "via": via,
        "process": machine.this_process(),
    }
    return manifest.plain(content | machine.describe() | _world_size(stated["params"]))


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
    parent = results_dir / _checked(experiment)
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


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot be a name in a run: use letters, digits, '.', '_', '-' and spaces")
    return name


def _via() -> str:
    """How this process came to run: in a kernel under papermill, in a kernel somebody sits at, or neither."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return "library"
    shell = sys.modules["IPython"].get_ipython()
    if getattr(shell, "kernel", None) is None:
        return "library"
    import psutil

    try:
        command = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):
        command = []
    return "papermill" if any("papermill" in part for part in command) else "notebook"
