"""`nestlab data fetch`: from a data set's home to the folder where `prepare` looks, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nestlab import paths
from nestlab.data.fetch_catalogue import Remote, chosen
from nestlab.data.fetch_check import is_gz, recorded, sums
from nestlab.data.fetch_http import Download, NotThere, Tries
from nestlab.data.fetch_partial import Partial
from nestlab.data.fetch_unpack import Limits, unpack, why_no_gz
from nestlab.errors import UserError
from nestlab.files import write_atomic

RESERVE = 200_000_000  # bytes that stay free on the disk
Tell = Callable[[str], None]


@dataclass(frozen=True)
class FetchOptions:
    """How data is fetched.

    Attributes:
        mirror: an address that the file's name is put behind, in place of the data's own; the checksum stays.
        keep_archive: keep the archive after it is unpacked.
        unpack: also unpack day files, which `prepare` reads as they are; archives of folders always are.
        days: of Criteo 1TB: which days.
        tries: patience with the network.
    """

    mirror: str | None = None
    keep_archive: bool = False
    unpack: bool = False
    days: tuple[int, ...] | None = None
    tries: Tries = Tries()  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        if self.mirror is not None and not re.match(r"https?://[^/]", self.mirror):
            raise UserError(f"--mirror {self.mirror}: write an address that begins with https:// or http://")


@dataclass(frozen=True)
class Fetched:
    """What became of one file: `path` of the data, `sha256` of what was downloaded, `new` unless it was there."""

    path: Path
    sha256: str
    new: bool


def fetch(
    name: str,
    root: str | Path = "datasets",
    *,
    options: FetchOptions | None = None,
    tell: Tell = lambda line: None,
) -> list[Fetched]:
    """Downloads a data set below `root`, checks it, unpacks it; what is there already stays as it is.

    A call that is broken off goes on where it was when it is repeated. Beside the data, `NAME.sha256` records what
    came.

    Raises:
        UserError: no such data set, no network, not at the address, no room, another checksum, a bad archive.
    """
    options = options or FetchOptions()
    remotes = chosen(name, options.days)
    return fetch_all(remotes, paths.data_root(root), options, tell)


def fetch_all(remotes: Iterable[Remote], root: Path, options: FetchOptions, tell: Tell) -> list[Fetched]:
    """As `fetch`, for files of any catalogue."""
    try:
        return [_Fetch(remote, root, options, tell).run() for remote in remotes]
    except OSError as error:
        raise UserError(f"{error.filename or root}: {error.strerror}; choose another --root, or mend it") from None


class _Fetch:
    """One file: `self.archive` is what is downloaded, `self.target` what is left in the end."""

    def __init__(self, remote: Remote, root: Path, options: FetchOptions, tell: Tell) -> None:
        self.remote, self.options, self.tell = remote, options, tell
        self.folder = root / remote.folder
        if self.folder.is_symlink():  # to another disk, say: there it is unpacked, and there it gets its name
            self.folder = Path(os.path.realpath(self.folder))
        single = remote.packing == "gz"
        self.unpacks = options.unpack or not single
        self.archive = (self.folder if single else root) / remote.name
        plain = self.archive.with_name(remote.name.removesuffix(".gz"))
        self.target = (plain if self.unpacks else self.archive) if single else self.folder
        self.record = self.folder / f"{remote.name}.sha256"

    def run(self) -> Fetched:
        if there := self._there():
            self.tell(f"{self.target}: is there already")
            return there
        self._make_way()
        partial = Partial(self.archive)
        with partial.alone():
            if there := self._there():
                return there  # another process has brought it meanwhile
            sha256 = self._whole_archive(partial)
            if self.unpacks:
                self._unpack(sha256)
            else:
                self._write_record(self.record, sha256)
        self.archive.with_name(f".{self.archive.name}.lock").unlink(missing_ok=True)
        return Fetched(self.target, sha256, True)

    def _there(self) -> Fetched | None:
        if self.remote.packing == "gz":  # `prepare` reads a day packed and unpacked alike
            there = (
                self.target if self.target.exists() else self.archive.with_name(self.remote.name.removesuffix(".gz"))
            )
            if not there.exists():
                return None
            known = recorded(self.record) or ""
            if not known and there.suffix == ".gz" and not is_gz(there):  # put there by hand, or by another program
                raise UserError(f"{there}: is there, but is no gzip file; remove it, and run this again")
            return Fetched(there, known, False)
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return None
        if self.record.exists():
            return Fetched(self.folder, recorded(self.record) or "", False)
        raise UserError(
            f"{self.folder} is there, but not from a finished fetch; move it away, or choose another --root"
        )

    def _make_way(self) -> None:
        """What would fail after the download fails before it."""
        for parent in (self.archive.parent, self.folder.parent):
            parent.mkdir(parents=True, exist_ok=True)
        if self.remote.packing != "gz" and os.path.ismount(self.folder):
            raise UserError(f"{self.folder}: a disk of its own, whose name no folder can take; choose a --root on it")

    def _whole_archive(self, partial: Partial) -> str:
        """The archive on disk, downloaded and checked; returns its sha256."""
        if not self.archive.exists():
            self._download(partial)
            return self._checked(partial.path, partial)
        self.tell(f"{self.archive}: is there already; checking it")
        return self._checked(self.archive, None)

    def _download(self, partial: Partial) -> None:
        failures = []
        for url in self._addresses():
            download = Download(
                url,
                partial,
                checked=self.remote.md5 is not None,
                room=self._room,
                tell=self.tell,
                tries=self.options.tries,
            )
            try:
                return download.run()
            except NotThere as error:
                failures.append(str(error))
        raise UserError(
            f"{self.remote.name}: {'; '.join(failures)}; check the connection and --mirror, or put the file at "
            f"{self.archive} by hand and run this again"
        )

    def _addresses(self) -> tuple[str, ...]:
        mirror = self.options.mirror
        return self.remote.addresses if mirror is None else (f"{mirror.rstrip('/')}/{self.remote.name}",)

    def _room(self, missing: int) -> None:
        needed = {self.archive.parent: missing}
        if self.unpacks:
            apart = self._workshop().parent.stat().st_dev != self.archive.parent.stat().st_dev
            place = self._workshop().parent if apart else self.archive.parent
            needed[place] = needed.get(place, 0) + self.remote.unpacked
        for place, size in needed.items():
            free = shutil.disk_usage(place).free
            if free < size + RESERVE:
                raise UserError(
                    f"{self.remote.name}: needs {(size + RESERVE) / 1e9:.1f} GB below {place}, of which "
                    f"{free / 1e9:.1f} GB are free; make room, or choose another --root"
                )

    def _checked(self, path: Path, partial: Partial | None) -> str:
        """Its sha256; renames a partial file that is right, removes one that is not."""
        self.tell(f"{self.remote.name}: checking")
        md5, sha256 = sums(path)
        if why := self._fault(path, md5):
            if partial is not None:
                partial.drop()
            what = "it was removed; try again" if partial is not None else f"remove {path}, and try again"
            raise UserError(f"{self.remote.name}: {why}: {what}, or another --mirror")
        if not self.remote.md5:
            self._compare(path, sha256)
        if partial is not None:
            partial.finish()
        return sha256

    def _fault(self, path: Path, md5: str) -> str | None:
        """What is wrong with the bytes. Without a published checksum, a file that stays packed must at least unpack."""
        if self.remote.md5:
            return None if md5 == self.remote.md5 else f"wrong checksum {md5}, expected {self.remote.md5}"
        return None if self.unpacks else why_no_gz(path, self.remote.name, self._limits(), self.tell)

    def _compare(self, path: Path, sha256: str) -> None:
        """With what came another time. The download stays: whether it or the earlier one is right is not known here."""
        earlier = recorded(self._earlier())
        if earlier and earlier != sha256:
            raise UserError(
                f"{self.remote.name}: wrong checksum {sha256}, expected {earlier}, that of an earlier fetch: "
                f"try another --mirror, or remove {self._earlier()} to accept this version, which is kept in {path}"
            )

    def _earlier(self) -> Path:
        """The record of an earlier download: beside the data, or beside the archive where the data was removed."""
        beside = self.archive.with_name(f"{self.archive.name}.sha256")
        return self.record if self.record.exists() else beside

    def _unpack(self, sha256: str) -> None:
        temporary = self._workshop()
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed: the lock is ours
        temporary.mkdir()
        try:
            unpack(self.archive, self.remote.packing, temporary, self._limits(), self.tell)
            self._publish(temporary, sha256)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if self.options.keep_archive:
            self._write_record(self.archive.with_name(f"{self.archive.name}.sha256"), sha256)
        else:
            self.archive.unlink()

    def _workshop(self) -> Path:
        """The folder in which it is unpacked: on the disk where it is to stay."""
        beside = self.target if self.remote.packing == "gz" else self.folder
        return beside.with_name(f".{self.remote.name}.unpacking")

    def _limits(self) -> Limits:
        return Limits(self.remote.limit, self.remote.members)

    def _publish(self, temporary: Path, sha256: str) -> None:
        """Renames what was unpacked; the record is in the folder before the folder has its name."""
        if self.remote.packing == "gz":
            (temporary / self.target.name).rename(self.target)
            self._write_record(self.record, sha256)
            return
        inner = temporary / self.remote.folder  # archives with a folder of that name, and those without one
        whole = inner if inner.is_dir() else temporary
        self._write_record(whole / self.record.name, sha256)
        whole.rename(self.folder)

    def _write_record(self, path: Path, sha256: str) -> None:
        """As the command `sha256sum` writes and checks it."""
        write_atomic(path, f"{sha256}  {self.remote.name}\n".encode())
