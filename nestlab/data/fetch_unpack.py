"""Archives unpacked without trust: nothing leaves the folder, nothing but files and folders, never more than agreed.

Files are written here, not by the archive's library: so no mode, owner, link or device can come along. Sizes are
counted while they are unpacked; what an archive claims is believed only where it claims too much.
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from nestlab.data.fetch_partial import CHUNK, write
from nestlab.errors import UserError

# Decompressed bytes that may pass between the end of one file of a tar and the next: a header, and its long names.
HEADER_BYTES = 1 << 20
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError)


@dataclass(frozen=True)
class Limits:
    """Bytes and files that an archive may hold in all."""

    total: int
    members: int = 1000


def unpack(
    archive: Path, packing: str, into: Path, limits: Limits, tell: Callable[[str], None] = lambda line: None
) -> None:
    """Unpacks into the empty folder `into`; `packing`: `tar.gz`, `zip` or `gz` (one file, named as the archive is).

    Raises:
        UserError: damaged, too large, not to be trusted, or the disk is full. `into` then holds a part: remove it.
    """
    writer = _Writer(archive, into, limits, tell)
    try:
        {"tar.gz": _tar, "zip": _zip, "gz": _gz}[packing](archive, writer)
    except _DAMAGED as error:
        raise UserError(f"{archive}: damaged ({error}); remove it and fetch it again") from None
    except (NotImplementedError, RuntimeError) as error:  # zipfile: a method that it does not have, or a password
        raise UserError(f"{archive}: cannot be unpacked ({error}); try --mirror URL") from None
    if not writer.files:
        raise writer.distrust("it holds no file")


def why_no_gz(path: Path, name: str, limits: Limits, tell: Callable[[str], None] = lambda line: None) -> str | None:
    """What is wrong with a gzip file, in words; None: it is whole. It is read to its end, where its own sum stands, and
    nothing is written."""
    size = 0
    try:
        with gzip.open(path) as plain:
            while piece := plain.read(CHUNK):
                size += len(piece)
                if size > limits.total:
                    return f"it unpacks to more than {limits.total:,} bytes"
                tell(f"{name}: checking that it unpacks, {size / 1e9:.2f} GB so far")
    except _DAMAGED as error:
        return f"no whole gzip file: {error}"
    return None if size else "it unpacks to nothing"


class _Writer:
    """Checks names and counts bytes over a whole archive."""

    def __init__(self, archive: Path, into: Path, limits: Limits, tell: Callable[[str], None]) -> None:
        self.archive, self.into, self._limits, self._tell = archive, into, limits, tell
        self._bytes = self._members = self.files = 0

    def count(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise self.distrust(f"more than {self._limits.members:,} entries")

    def folder(self, name: str) -> None:
        self._make(self._place(name), name)

    def file(self, name: str, source: BinaryIO) -> None:
        path = self._place(name)
        self._make(path.parent, name)
        try:
            file = open(path, "xb")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise self.distrust(f"'{name}' cannot be made a file ({error.strerror})") from None
        self.files += 1
        with file:
            while piece := source.read(CHUNK):
                self._bytes += len(piece)
                if self._bytes > self._limits.total:
                    raise self.distrust(f"it unpacks to more than {self._limits.total:,} bytes")
                write(file, piece)
                self._tell(f"{self.archive.name}: unpacking {name}, {self._bytes / 1e9:.2f} GB so far")

    def claims(self, size: int) -> None:
        if self._bytes + size > self._limits.total:
            raise self.distrust(f"it unpacks to more than {self._limits.total:,} bytes")

    def distrust(self, why: str) -> UserError:
        return UserError(f"{self.archive}: not to be trusted: {why}; remove it, and fetch it from its own home")

    def _make(self, folder: Path, name: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise self.distrust(f"'{name}' lies below a file") from None

    def _place(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if not name or "\\" in name or "\0" in name or pure.is_absolute() or ".." in pure.parts:
            raise self.distrust(f"'{name}' would leave the folder")
        return self.into / pure


class _Budgeted:
    """A stream of which no more than the budget may be read; an archive's header cannot be a bomb then."""

    def __init__(self, stream: BinaryIO, writer: _Writer) -> None:
        self._stream, self._writer, self.budget = stream, writer, HEADER_BYTES

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self.budget -= len(piece)
        if self.budget < 0:
            raise self._writer.distrust("a header of unreasonable size")
        return piece


def _tar(archive: Path, writer: _Writer) -> None:
    with gzip.open(archive) as plain:
        stream = _Budgeted(plain, writer)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in _members(tar, stream):
                writer.count()
                _tar_member(tar, member, stream, writer)
        stream.budget = 1 << 30  # zeros behind the end of a tar
        while stream.read(CHUNK):  # to the end: only there does gzip check its own sum
            pass


def _members(tar: tarfile.TarFile, stream: _Budgeted) -> Iterator[tarfile.TarInfo]:
    while True:
        stream.budget = HEADER_BYTES
        if (member := tar.next()) is None:
            return
        yield member
        tar.members = []  # else it keeps every one of them


def _tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo, stream: _Budgeted, writer: _Writer) -> None:
    if member.isdir():
        writer.folder(member.name)
        return
    if not member.isreg() or member.issparse():
        raise writer.distrust(f"'{member.name}' is a link, a device or something else that is no plain file")
    try:
        tarfile.data_filter(member, str(writer.into))  # the library's own opinion of the name
    except tarfile.FilterError as error:
        raise writer.distrust(str(error)) from None
    writer.claims(member.size)
    stream.budget = member.size + HEADER_BYTES
    source = tar.extractfile(member)
    assert source is not None  # it is a regular file
    writer.file(member.name, source)


def _zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            writer.count()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                writer.folder(member.filename)
            elif kind not in (0, stat.S_IFREG):
                raise writer.distrust(
                    f"'{member.filename}' is a link, a device or something else that is no plain file"
                )
            else:
                writer.claims(member.file_size)
                with packed.open(member) as source:
                    writer.file(member.filename, source)


def _gz(archive: Path, writer: _Writer) -> None:
    with gzip.open(archive) as source:
        writer.file(archive.name.removesuffix(".gz"), source)
