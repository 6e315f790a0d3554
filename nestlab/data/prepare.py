"""A prepared folder: made once from its inputs, with a manifest, and never reused when anything changed."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nestlab.data.folders import build_folder
from nestlab.data.identity import FileIdentity, identify, sha256_file, sha256_json, stamp
from nestlab.errors import UserError

MANIFEST = "manifest.json"
HOPELESS = 10_000  # so many lines set aside before the first good one: this is not the format

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PrepareOptions:
    """How raw files are turned into Parquet. All of it is part of the prepared data's identity.

    Attributes:
        block_bytes: how much text is parsed at a time; bounds the memory (about ten times this) and is the size of
            a row group.
        compression: Parquet's codec: zstd, snappy, lz4 or none.
    """

    block_bytes: int = 16 << 20
    compression: str = "zstd"

    def __post_init__(self) -> None:
        if not 1 <= self.block_bytes <= 256 << 20:
            raise UserError(f"block_bytes={self.block_bytes}: choose between 1 and {256 << 20} bytes")
        if self.compression not in ("zstd", "snappy", "lz4", "none"):
            raise UserError(f"compression='{self.compression}': choose zstd, snappy, lz4 or none")


@dataclass(frozen=True)
class Prepared:
    """A whole prepared folder. `fingerprint` is the sha256 over inputs, options and schema version."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def parts(self) -> list[Path]:
        return [self.folder / part["name"] for part in self.manifest["parts"]]


def prepare_folder(
    name: str, root: Path, identity: dict[str, Any], build: Callable[[Path], dict[str, Any]]
) -> Prepared:
    """The prepared folder of `identity` below `root`, built if it is not there whole.

    Args:
        identity: everything that decides the content, as JSON: the schema version, inputs by hash, options.
        build: fills a folder and returns what its manifest says: `parts` (and `tables`, further files) by
            `describe_file`, `rows_out`, and whatever else is worth knowing.

    Raises:
        UserError: from `build`; or `root` cannot be written.
    """
    fingerprint = sha256_json(identity)
    folder = root / f"{name}-{fingerprint[:16]}"

    def is_whole(candidate: Path) -> bool:
        return read_prepared(candidate, fingerprint) is not None

    def build_and_sign(temporary: Path) -> None:
        head = {
            "schema_version": identity["schema_version"],
            "name": name,
            "fingerprint": fingerprint,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        manifest = {**head, **build(temporary), "software": _software()}
        # Written last: its presence says that all else is there.
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

    if not is_whole(folder):
        build_folder(folder, build_and_sign, is_whole)
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


def describe_file(path: Path) -> dict[str, Any]:
    """A file of a prepared folder, as its manifest lists it."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


def check_unchanged(path: Path, identity: FileIdentity) -> None:
    """Raises UserError if an input is not what it was when its identity was taken."""
    if stamp(path)[:2] != [identity.bytes, identity.mtime_ns]:
        raise UserError(f"{path}: changed while it was read; try again once it is complete")


def _software() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("nestlab", "pyarrow", "numpy", "datasets"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
