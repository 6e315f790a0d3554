"""Files written whole: a reader sees the old one, the new one, or none."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from nestlab.errors import UserError


def write_atomic(path: str | Path, content: bytes) -> Path:
    """Writes to a temporary name beside `path`, then renames. A link is followed; what is no file, such as a pipe or
    a device, is written to as it is and never replaced.

    Raises:
        UserError: `path` is a folder.
        OSError: it cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"'{path}' is a folder; name a file")
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(content)
        return path
    target = path.resolve()
    temporary = temporary_name(target)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def temporary_name(path: Path) -> Path:
    """A name beside `path`, of this thread alone; the leading dot keeps it out of every listing."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
