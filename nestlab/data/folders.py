"""Where prepared data lives, and how a folder comes to be there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nestlab.errors import UserError

_TEMPORARY = ".tmp-"


def prepared_root(explicit: str | Path | None = None) -> Path:
    """`explicit`, else NESTLAB_PREPARED, else datasets/prepared of the checkout, else the user's cache."""
    if explicit is not None:
        return Path(explicit)
    if named := os.environ.get("NESTLAB_PREPARED"):
        return Path(named)
    project = Path(__file__).resolve().parents[2]
    if (project / "pyproject.toml").is_file() and (project / "datasets").is_dir():
        return project / "datasets" / "prepared"
    return Path.home() / ".cache" / "nestlab" / "prepared"


def build_folder(final: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> None:
    """Makes `final` by calling `build` on a temporary folder beside it, which is then renamed.

    Two processes may do this at once: the second to finish finds a whole folder and throws its own away. A folder
    that is there but not whole is replaced. What killed processes left behind is removed.

    Raises:
        UserError: the place cannot be written, or the disk is full.
    """
    with _writing(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(final.parent)
        with _temporary(final.parent) as temporary:
            build(temporary)
            _publish(temporary, final, is_whole)


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file so that a reader sees the old or the new content, never a part.

    Raises:
        UserError: the place cannot be written, or the disk is full.
    """
    with _writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def _publish(temporary: Path, final: Path, is_whole: Callable[[Path], bool]) -> None:
    for _ in range(100):
        try:
            os.rename(temporary, final)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if is_whole(final):
            return
        _set_aside(final)
    raise UserError(f"{final}: another process keeps replacing this folder; remove it and try again")


def _set_aside(damaged: Path) -> None:
    # Renamed first: removing file by file would let another process see a folder that is half gone.
    aside = damaged.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
    try:
        os.rename(damaged, aside)
    except FileNotFoundError:
        return
    _remove(aside)


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """A new folder; the lock beside it, held while its process lives, tells it from an orphan."""
    folder = parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
    lock = folder.with_name(folder.name + ".lock")
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            folder.mkdir()
            yield folder
        finally:
            _remove(folder)
            lock.unlink(missing_ok=True)


def _remove_orphans(parent: Path) -> None:
    for lock in parent.glob(f"{_TEMPORARY}*.lock"):
        try:
            with open(lock) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
        except OSError:
            continue  # its owner lives, or another process removes it right now


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write prepared data under {folder}: {error.strerror or error}; "
            "set NESTLAB_PREPARED to a folder that can be written and has space"
        ) from error
