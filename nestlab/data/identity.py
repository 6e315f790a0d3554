"""Which bytes a data set was made from: streamed sha256 of files, remembered while a file stays untouched."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nestlab.data.folders import write_atomically
from nestlab.data.lines import read_lines
from nestlab.errors import UserError

_BLOCK = 1 << 22


@dataclass(frozen=True)
class FileIdentity:
    """One input file. `sha256` is of the `whole` file, or covers only its first `lines` lines."""

    name: str
    bytes: int
    mtime_ns: int
    sha256: str
    lines: int | None = None
    whole: bool = False

    @property
    def content(self) -> tuple[str, int | None]:
        """What was read: the same for a whole file, however many lines were asked for."""
        return self.sha256, None if self.whole else self.lines


def sha256_json(value: object) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def identify(paths: Sequence[Path], rows: int | None, memory: Path, header: int = 0) -> list[FileIdentity]:
    """The identities of the inputs; with `rows`, of only those files and lines that the first `rows` rows need.

    Every file starts with `header` lines that are no rows; `FileIdentity.lines` counts them too.
    `memory` is the folder where hashes are kept, so that a terabyte is not hashed at every start. A hash is taken
    from there only while the file's size, times and inode are what they were.

    Raises:
        UserError: a file cannot be read, or changes while it is hashed.
    """
    if rows is None:
        with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 4)) as pool:
            return list(pool.map(lambda path: _identify_one(path, None, memory), paths))
    found: list[FileIdentity] = []
    left = rows
    for path in paths:
        if left == 0:
            break
        found.append(_identify_one(path, left + header, memory))
        left -= max((found[-1].lines or 0) - header, 0)
    return found


def stamp(path: Path) -> list[int]:
    """What changes when a file's content does (short of malice): size, times in ns, inode.

    Raises:
        UserError: there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not path.is_file():
        raise UserError(f"{path}: not a file; name one raw text file")
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def remember(path: Path, sha256: str, memory: Path) -> None:
    """Spares `identify` the hashing of a whole file that was hashed while it was written."""
    now = stamp(path)
    _keep(_entry(path, None, memory), now, FileIdentity(path.name, now[0], now[1], sha256, None, True))


def _identify_one(path: Path, limit: int | None, memory: Path) -> FileIdentity:
    before = stamp(path)
    remembered = _entry(path, limit, memory)
    if (known := _recall(remembered, before)) is not None:
        return known
    digest, lines = ("", None) if limit is None else _hash_lines(path, limit)
    whole = lines is None or lines < limit
    if whole:
        digest = _hash_whole(path)
    if stamp(path) != before:
        raise UserError(f"{path}: changed while it was read; try again once it is complete")
    identity = FileIdentity(path.name, before[0], before[1], digest, lines, whole)
    _keep(remembered, before, identity)
    return identity


def _entry(path: Path, limit: int | None, memory: Path) -> Path:
    return memory / f"{sha256_json([str(path.resolve()), limit])[:32]}.json"


def _keep(remembered: Path, now: list[int], identity: FileIdentity) -> None:
    with suppress(UserError):  # a read-only place costs time, no more
        write_atomically(remembered, json.dumps({"stamp": now, "identity": asdict(identity)}))


def _recall(remembered: Path, now: list[int]) -> FileIdentity | None:
    try:
        entry = json.loads(remembered.read_text(encoding="utf-8"))
        return FileIdentity(**entry["identity"]) if entry["stamp"] == now else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash_whole(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _hash_lines(path: Path, limit: int) -> tuple[str, int]:
    digest, count = hashlib.sha256(), 0
    for _, lines in read_lines(path, _BLOCK, limit):
        digest.update(b"\n".join(lines) + b"\n")
        count += len(lines)
    return digest.hexdigest(), count
