"""Checksums of files, and what was noted of them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def sums(path: Path) -> tuple[str, str]:
    """(md5, sha256), in hexadecimal digits, of a file."""
    sums = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            for each in sums:
                each.update(piece)
    return sums[0].hexdigest(), sums[1].hexdigest()


def is_gz(path: Path) -> bool:
    """Whether it begins as one."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def recorded(path: Path) -> str | None:
    """The sha256 in a file as `sha256sum` writes it; None: there is none."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return words[0] if words and re.fullmatch("[0-9a-f]{64}", words[0]) else None
