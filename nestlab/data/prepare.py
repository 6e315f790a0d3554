"""A prepared folder: made once from its inputs, with a manifest, and never reused when anything changed."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nestlab.data import journal
from nestlab.data.folders import build_folder
from nestlab.data.identity import FileIdentity, identify, remember, sha256_file, sha256_json, stamp
from nestlab.errors import UserError

MANIFEST = "manifest.json"
_PASSING = ("content", "created", "software", "stages")  # keys of a manifest that hold for one run only
HOPELESS = 10_000  # so many lines set aside before the first good one: this is not the format

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PrepareOptions:
    """How raw files are turned into Parquet. All of it is part of the prepared data's identity.

    Attributes:
        block_bytes: how much text is parsed at a time; bounds the memory (about ten times this a thread). Criteo: the
            size of a row group.
        compression: Parquet's codec: zstd, snappy, lz4 or none. KuaiRand is not written as Parquet.
    """

    block_bytes: int = 32 << 20
    compression: str = "zstd"

    def __post_init__(self) -> None:
        if not 1 <= self.block_bytes <= 256 << 20:
            raise UserError(f"block_bytes={self.block_bytes}: choose between 1 and {256 << 20} bytes")
        if self.compression not in ("zstd", "snappy", "lz4", "none"):
            raise UserError(f"compression='{self.compression}': choose zstd, snappy, lz4 or none")


@dataclass(frozen=True)
class Prepared:
    """A whole prepared folder.

    `fingerprint` is the sha256 over inputs, options and schema version: what was asked for. `content` is the sha256
    over the manifest without what is true of one run only: what came of it, and the same however often that was
    interrupted, whenever and wherever it ran.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def content(self) -> str:
        return self.manifest["content"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def parts(self) -> list[Path]:
        return [self.folder / part["name"] for part in self.manifest["parts"]]


def prepare_folder(
    name: str,
    root: Path,
    identity: dict[str, Any],
    build: Callable[[Path], dict[str, Any]],
    resumable: bool = False,
) -> Prepared:
    """The prepared folder of `identity` below `root`, built if it is not there whole.

    Args:
        identity: everything that decides the content, as JSON: the schema version, inputs by hash, options.
        build: fills a folder and returns what its manifest says: `parts` (and `tables`, further files) by
            `describe_file`, `rows_out`, and whatever else is worth knowing; what depends on the hour or the machine
            under the keys of `_PASSING` alone.
        resumable: `build` can go on from what it left when it was killed; see `build_folder`. Its journal, and files
            that end in `journal.SPOOL`, are removed once the manifest is written.

    Raises:
        UserError: from `build`; or `root` cannot be written.
    """
    fingerprint = sha256_json(identity)
    folder = root / f"{name}-{fingerprint[:16]}"
    written: list[int] = []

    def is_whole(candidate: Path) -> bool:
        return read_prepared(candidate, fingerprint) is not None

    def build_and_sign(temporary: Path) -> None:
        # Signed by a process that was killed while it cleared up: its files are read once more, nothing is redone.
        if not (resumable and is_whole(temporary)):
            sign(temporary)
        _clear(temporary)
        written.append((temporary / MANIFEST).stat().st_ino)

    def sign(temporary: Path) -> None:
        head = {
            "schema_version": identity["schema_version"],
            "name": name,
            "fingerprint": fingerprint,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        manifest = {**head, **build(temporary), "software": _software()}
        manifest["content"] = content_hash(manifest)
        # Written last: its presence says that all else is there.
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

    if not is_whole(folder):
        build_folder(folder, build_and_sign, is_whole, resumable)
        if written == [(folder / MANIFEST).stat().st_ino]:
            # Its files were hashed a moment ago, under another name.
            _remember(folder)
    prepared = read_prepared(folder, fingerprint)
    if prepared is None:
        raise UserError(f"{folder}: damaged right after it was written; check the disk, then try again")
    return prepared


def read_prepared(folder: Path, fingerprint: str) -> Prepared | None:
    """The prepared folder if it is whole and of this fingerprint, else None.

    Whole: the manifest is there, and every file that it lists has its recorded content. Contents are hashed once;
    afterwards an unchanged stamp stands for them.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["fingerprint"] != fingerprint:
            return None
        listed = [*manifest["parts"], *manifest.get("tables", [])]
        known = identify([folder / entry["name"] for entry in listed], None, folder / "hashes")
        whole = [entry.sha256 for entry in known] == [entry["sha256"] for entry in listed]
        return Prepared(folder, manifest) if whole and manifest["rows_out"] > 0 else None
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def content_hash(manifest: dict[str, Any]) -> str:
    """See `Prepared.content`."""
    lasting = {key: value for key, value in manifest.items() if key not in _PASSING}
    inputs = [{key: value for key, value in entry.items() if key != "mtime_ns"} for entry in manifest.get("inputs", [])]
    return sha256_json({**lasting, "inputs": inputs})


def describe_file(path: Path, folder: Path | None = None) -> dict[str, Any]:
    """A file of a prepared folder, as its manifest lists it; one in a folder below `folder` by its way from there."""
    name = path.relative_to(folder).as_posix() if folder else path.name
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


def describe_files(paths: Iterable[Path], folder: Path) -> list[dict[str, Any]]:
    """As `describe_file`, several files at a time."""
    with ThreadPoolExecutor(threads()) as pool:
        return list(pool.map(lambda path: describe_file(path, folder), paths))


def threads() -> int:
    """How many threads a preparation has work for: as many as there are cores, but memory is for four at most."""
    return min(len(os.sched_getaffinity(0)), 4)


def ahead(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`function` of each item, in their order; a few are worked on by threads while the last one is looked at."""
    with ThreadPoolExecutor(threads()) as pool:
        waiting: deque[Future] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def check_unchanged(path: Path, identity: FileIdentity) -> None:
    """Raises UserError if an input is not what it was when its identity was taken."""
    if stamp(path)[:2] != [identity.bytes, identity.mtime_ns]:
        raise UserError(f"{path}: changed while it was read; try again once it is complete")


def _clear(folder: Path) -> None:
    """Removes what only a build that goes on needs: not before the manifest is there, and the journal last."""
    shutil.rmtree(folder / "hashes", ignore_errors=True)  # of files under the name that they have here
    for path in [*folder.glob(f"*{journal.SPOOL}"), folder / journal.NAME]:
        path.unlink(missing_ok=True)


def _remember(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for entry in [*manifest["parts"], *manifest.get("tables", [])]:
        remember(folder / entry["name"], entry["sha256"], folder / "hashes")


def _software() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("nestlab", "pyarrow", "numpy", "datasets"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
