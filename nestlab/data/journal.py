"""What a preparation has finished, so that a process that takes over from a killed one does not do it again.

One JSON line a finished piece of work, written after its files. Files are not forced to the disk: a killed process
leaves what it wrote to the kernel, whole; a machine that went down may not have. So the journal of another boot is
thrown away, with everything beside it.

It is there until the manifest is: `nestlab.data.prepare` removes it last of all, so that every moment can be gone on
from.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"
SPOOL = ".spool"  # how the names of files end that a preparation needs only while it runs
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """The journal of the temporary folder `folder`; a folder without a usable one is emptied.

    Attributes:
        found: the entries of earlier processes in their order, `kind` among their keys.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.found = self._read()
        if not self.found:
            _empty(folder)
        lines = [json.dumps(entry) + "\n" for entry in [_head(), *self.found]]
        new = self._path.with_name(f"{NAME}.new")  # renamed: a process killed here, or a full disk, loses nothing
        new.write_text("".join(lines), encoding="utf-8")
        os.replace(new, self._path)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115  (closed on leaving)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def add(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Notes that a piece of work is done; its files must have been handed to the kernel. Returns the entry."""
        entry = {"kind": kind, **facts}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        return entry

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.found if entry["kind"] == kind]

    def done(self, kind: str) -> dict[str, Any] | None:
        """The entry of a piece of work that is done once, None if it was not."""
        return next(iter(self.of(kind)), None)

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n")
            # What lies behind the last newline was cut off in the middle.
            head, *entries = [json.loads(line) for line in lines[:-1]]
        except (OSError, ValueError):
            return []
        return entries if head == _head() else []


def _head() -> dict[str, str]:
    try:
        return {"boot": _BOOT.read_text(encoding="ascii").strip()}
    except OSError:
        return {"boot": "unknown"}


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
