"""A download on disk while it is under way: its bytes, what they belong to, and how far they are."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nestlab.errors import UserError
from nestlab.files import write_atomic

CHUNK = 1 << 18  # bytes read and written at once


class Partial:
    """The bytes that have come, and what they belong to: `NAME.partial` and `NAME.partial.json` beside it."""

    def __init__(self, path: Path) -> None:
        self.target = path
        self.path = path.with_name(f"{path.name}.partial")
        self.note = path.with_name(f"{path.name}.partial.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def known(self) -> dict:
        """`url`, `validator` (None: the server gave none) and `total` in bytes; empty where nothing can go on."""
        try:
            known = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and {"url", "validator", "total"} <= known.keys() else {}

    def begin(self, url: str, validator: str | None, total: int) -> None:
        self.path.write_bytes(b"")
        write_atomic(self.note, json.dumps({"url": url, "validator": validator, "total": total}).encode())

    def drop(self) -> None:
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def finish(self) -> None:
        self.path.replace(self.target)
        self.note.unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Two downloads never write one file.

        Raises:
            UserError: another process is at it.
        """
        with open(self.target.with_name(f".{self.target.name}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.target}: another process fetches it; wait until it has ended") from None
            yield


class Meter:
    """Lines such as `day_0.gz: 0.52 of 1.60 GB (32%), 11.0 MB/s, 98 s left`; `tell` decides how often to show one."""

    def __init__(self, name: str, total: int, begin: int, tell: Callable[[str], None]) -> None:
        self._name, self._total, self._begin, self._tell = name, total, begin, tell
        self._since = time.monotonic()

    def show(self, at: int) -> None:
        speed = (at - self._begin) / max(time.monotonic() - self._since, 1e-6)
        left = (self._total - at) / max(speed, 1.0)
        self._tell(
            f"{self._name}: {at / 1e9:.2f} of {self._total / 1e9:.2f} GB ({at / max(self._total, 1):.0%}), "
            f"{speed / 1e6:.1f} MB/s, {left:.0f} s left"
        )


def write(file: BinaryIO, piece: bytes) -> None:
    """Writes to disk.

    Raises:
        UserError: it is full, or cannot be written.
    """
    try:
        file.write(piece)
    except OSError as error:
        raise UserError(f"{file.name}: {error.strerror}; make room, or choose another --root") from None
