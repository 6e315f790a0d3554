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
from typing import TextIO

from nestlab.errors import UserError

_TEMPORARY = ".tmp-"
# Errors of a temporary folder whose own files are not as they were left; None: not the system's error.
_OF_NO_USE = (
    None,
    errno.ENOENT,
    errno.ENODATA,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EINVAL,
)


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


def build_folder(
    final: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool], resumable: bool = False
) -> None:
    """Makes `final` by calling `build` on a temporary folder beside it, which is then renamed.

    Two processes may do this at once: the second to finish finds a whole folder and throws its own away. A folder
    that is there but not whole is replaced. What killed processes left behind is removed.

    Args:
        resumable: `build` can go on from what it left when it was killed or interrupted: the temporary folder is kept
            until `final` is built, or anything else under the same name but for what follows its last hyphen. A full
            disk, or one that fails for the moment, is no reason to throw it away either. One process at a time works
            on it; another one works apart.

    Raises:
        UserError: the place cannot be written, or the disk is full.
    """
    kept = f"{_TEMPORARY}{final.name}" if resumable else None
    with _writing(final.parent, kept):
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(final.parent, kept)
        with _temporary(final.parent, kept) as temporary:
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
def _temporary(parent: Path, kept: str | None) -> Iterator[Path]:
    """A temporary folder; the lock beside it, held while its process lives, tells it from an orphan.

    It is new, or an orphan called `kept` that is taken over; it stays if it is called so and `_can_go_on`.
    """
    names = [*([kept] if kept else []), f"{_TEMPORARY}{uuid.uuid4().hex}"]
    held = None
    for name in names:
        folder, lock = parent / name, parent / f"{name}.lock"
        if (held := _lock(lock)) is not None:
            break
    assert held is not None, "a new name is free"
    remove = True
    try:
        folder.mkdir(exist_ok=True)
        yield folder
    except BaseException as error:
        remove = folder.name != kept or not _can_go_on(error)
        raise
    finally:
        if remove:
            _remove(folder)
            lock.unlink(missing_ok=True)
        held.close()


def _can_go_on(failure: BaseException) -> bool:
    """Whether what is done is of use after a failure: Ctrl-C, or a disk or a memory that was full.

    It is not after an error in the input or in the program, nor where a file of its own is missing or cut short: the
    next process would only fail in the same way.
    """
    if isinstance(failure, OSError):
        return failure.errno not in _OF_NO_USE
    return isinstance(failure, MemoryError) or not isinstance(failure, Exception)


def _lock(path: Path) -> TextIO | None:
    """The open file, locked for this process; None if another one holds it."""
    while True:
        held = open(path, "w")  # noqa: SIM115  (its lock lives as long)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            return None
        try:
            if os.fstat(held.fileno()).st_ino == os.stat(path).st_ino:
                return held
        except FileNotFoundError:
            pass
        held.close()  # its last owner removed this file between the two calls


def _remove_orphans(parent: Path, kept: str | None) -> None:
    for lock in parent.glob(f"{_TEMPORARY}*.lock"):
        orphan = lock.with_suffix("")
        if _may_resume(orphan.name, kept) or (held := _lock(lock)) is None:
            continue  # its turn may come, or its owner lives
        _remove(orphan)
        lock.unlink(missing_ok=True)
        held.close()


def _may_resume(orphan: str, kept: str | None) -> bool:
    """Whether an orphan is `kept`, or that of another data set: it has a name, and not a random one."""
    subject = orphan.rpartition("-")[0]
    if orphan == kept:
        return True
    return subject + "-" != _TEMPORARY and subject != (kept or "").rpartition("-")[0]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path, kept: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why, mine = error.strerror or error, str(folder / kept) if kept else ""
        if mine and not _can_go_on(error) and str(error.filename).startswith(mine):
            raise UserError(
                f"{error.filename}: {why}; what an earlier run had done could not be gone on from and was removed: "
                "run it again"
            ) from error
        done = (
            f"; what is done is kept in {mine}: with room there, run it again to go on" if os.path.isdir(mine) else ""
        )
        raise UserError(
            f"cannot write prepared data under {folder}: {why}; "
            f"set NESTLAB_PREPARED to a folder that can be written and has space{done}"
        ) from error
