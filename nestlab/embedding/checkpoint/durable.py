"""Files and folders of which the disk has heard, before anything says that they are there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path


def write_file(path: Path, content: bytes) -> str:
    """Writes a new file through to the disk; returns its sha256.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    """Writes a folder's names through to the disk: without it a loss of power may undo a rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_folder(path: Path) -> Path:
    """An empty folder; what a killed save left under that name goes first."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    return path


def put_in_place(scratch: Path, target: Path) -> None:
    """Gives a finished folder its name, in place of what a killed save left there."""
    sync_folder(scratch)
    if target.exists():
        shutil.rmtree(target)
    os.rename(scratch, target)
    sync_folder(target.parent)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
