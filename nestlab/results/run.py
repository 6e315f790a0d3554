"""A run while it happens: a folder whose manifest says `running` first, and what became of it at the end."""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import shutil
import signal
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.files import temporary_name
from nestlab.results import executed, machine, manifest, open_runs

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]*")
_DATASET = ("id", "kind", "rows", "fingerprint", "title")
_DATASET_IF_KNOWN = ("convention", "split")  # what else must agree before two runs are compared


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
        self._interrupted = False
        self._last_error: str | None = None
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
            info: a mapping or an object with id, kind (real or synthetic), rows, fingerprint and title; convention and
                split too, if it has them.
        """
        if dataclasses.is_dataclass(info) and not isinstance(info, type):
            info = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
        read = info.get if isinstance(info, Mapping) else lambda name: getattr(info, name, None)
        described = {name: read(name) for name in _DATASET}
        described |= {name: read(name) for name in _DATASET_IF_KNOWN if read(name) is not None}
        if described["kind"] not in ("real", "synthetic"):
            raise UserError(f"dataset '{described['id']}': kind must be real or synthetic, not {described['kind']!r}")
        self._update({"dataset": described})

    def table(self, name: str, frame: pandas.DataFrame) -> Path:
        """Writes `tables/<name>.parquet`."""
        return self._place(f"tables/{checked(name)}.parquet", lambda path: frame.to_parquet(path))

    def figure(self, name: str, figure: Figure) -> Path:
        """Writes `figures/<name>.png`."""
        return self._place(
            f"figures/{checked(name)}.png",
            lambda path: figure.savefig(path, format="png", dpi=120, bbox_inches="tight"),
        )

    def file(self, name: str, content: bytes | str | Path) -> Path:
        """Adds a file, such as `trace.json.gz`: its bytes, or a path to copy."""
        if isinstance(content, bytes):
            return self._place(checked(name), lambda path: path.write_bytes(content))
        return self._place(checked(name), lambda path: shutil.copyfile(content, path))

    def summary(self, **key_figures: Any) -> None:
        """Adds key figures, which `nestlab results list` shows."""
        self._update({"summary": self.manifest.get("summary", {}) | key_figures})

    def protocol(self, **facts: Any) -> None:
        """States how the key figures are taken (`split`, `ranking`, `k` …): runs that differ here are not compared."""
        self._update({"protocol": self.manifest.get("protocol", {}) | facts})

    def obtained(self, *ways: str) -> None:
        """States how its figures were obtained, where not all in the way that `start` was told; others than those of
        `manifest.HOW`, such as `computed`, are left out."""
        told = [way for way in manifest.HOW if way in ways]
        if told:
            self._update({"how": ", ".join(told)})

    def export(self, folder: str | Path) -> None:
        """States where the trained model was written."""
        self._update({"export": str(folder)})

    def finish(self, status: str = "ok", *, exception: str | None = None, exit_code: int | None = None) -> None:
        """Ends the run; the first end counts."""
        if status not in manifest.STATUSES or status == "running":
            raise UserError(f"a run cannot finish as '{status}': use one of {', '.join(manifest.STATUSES[1:])}")
        if self._finished:
            return
        self._finished = True
        open_runs.closed(self)
        atexit.unregister(self._at_exit)
        self._restore_sigterm()
        if self._adopted:  # the command that owns the run has the last word: a later cell may still fail
            changes = {"reported": status, "exception": exception}
        else:
            changes = ending(self.manifest, status, exception, exit_code) | executed.kept(self.path, self.manifest)
        if (accelerator := machine.accelerator()) is not None:  # torch may have been loaded since the start
            changes["accelerator"] = accelerator
        self._update(changes)

    def discard(self) -> None:
        """Leaves no trace of a run that never began, as after a wrong option; one that others own stays, as failed."""
        self.finish("failed", exception="it never began")
        if not self._adopted:
            shutil.rmtree(self.path, ignore_errors=True)

    def cell_failed(self, error: BaseException) -> None:
        """A cell of the notebook ended badly while this run was open, which a later cell may still finish.

        An interruption is written down at once, since nothing else may follow; of any other error the last one is
        remembered for the case that the notebook ends here.
        """
        self._last_error = describe(error)
        if isinstance(error, KeyboardInterrupt) and not self._adopted:
            self._interrupted = True
            self._update(ending(self.manifest, "killed", "KeyboardInterrupt in a cell", None))

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
        temporary = temporary_name(target)
        try:
            write(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and self.path.exists() and not self._interrupted:
            ended = "the process ended before the run was finished"
            self.finish("failed", exception=f"{self._last_error}; {ended}" if self._last_error else ended)

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


def checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot be a name in a run: use letters, digits, '.', '_', '-' and spaces")
    return name
