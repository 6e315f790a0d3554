"""Raw Criteo files → one Parquet folder with a manifest: once, streamed, never reused when anything changed."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nestlab.data.criteo_format import COLUMNS, SCHEMA, Reject, parse_block
from nestlab.data.folders import build_folder
from nestlab.data.identity import FileIdentity, identify, sha256_file, sha256_json, stamp
from nestlab.data.lines import read_lines
from nestlab.errors import UserError

SCHEMA_VERSION = 1  # raise it whenever the same input would be prepared otherwise
MANIFEST = "manifest.json"
REJECTS = "rejects.tsv"
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


def prepare_files(
    name: str,
    paths: Sequence[Path],
    root: Path,
    *,
    rows: int | None = None,
    options: PrepareOptions | None = None,
    progress: Progress = lambda message: None,
) -> Prepared:
    """Prepares the first `rows` lines (None: all) of `paths`, in order, under the folder `root`; or finds it done.

    Raises:
        UserError: an input is missing, unreadable, empty or not in the format; or `root` cannot be written.
    """
    options = options or PrepareOptions()
    progress(f"{name}: reading the identity of {len(paths)} file(s)")
    inputs = identify(paths, rows, root / "hashes")
    fingerprint = sha256_json(
        {
            "schema_version": SCHEMA_VERSION,
            "inputs": [[entry.sha256, entry.lines] for entry in inputs],
            "rows": rows,
            "options": asdict(options),
        }
    )
    folder = root / f"{name}-{fingerprint[:16]}"

    def is_whole(candidate: Path) -> bool:
        return read_prepared(candidate, fingerprint) is not None

    if not is_whole(folder):
        build = _Build(name, list(zip(paths, inputs, strict=False)), rows, options, fingerprint, progress)
        build_folder(folder, build.run, is_whole)
    prepared = read_prepared(folder, fingerprint)
    if prepared is None:
        raise UserError(f"{folder}: damaged right after it was written; check the disk, then try again")
    return prepared


def read_prepared(folder: Path, fingerprint: str) -> Prepared | None:
    """The prepared folder if it is whole and of this fingerprint, else None.

    Whole: the manifest is there (it is written last), and every Parquet part has its recorded content. Contents are
    hashed once; afterwards an unchanged stamp stands for them.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema_version"] != SCHEMA_VERSION or manifest["fingerprint"] != fingerprint:
            return None
        parts = [folder / part["name"] for part in manifest["parts"]]
        known = identify(parts, None, folder / "hashes")
        whole = [entry.sha256 for entry in known] == [part["sha256"] for part in manifest["parts"]]
        return Prepared(folder, manifest) if whole and manifest["rows_out"] > 0 else None
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


class _Build:
    """One preparation in its temporary folder; its counters become the manifest."""

    def __init__(
        self,
        name: str,
        inputs: list[tuple[Path, FileIdentity]],
        rows: int | None,
        options: PrepareOptions,
        fingerprint: str,
        progress: Progress,
    ) -> None:
        self.name, self.inputs, self.rows, self.options = name, inputs, rows, options
        self.fingerprint, self.progress = fingerprint, progress
        self.rows_in = self.rows_out = self.short = 0
        self.reasons: Counter[str] = Counter()
        self.nulls: Counter[str] = Counter(dict.fromkeys(COLUMNS, 0))
        self.first_reject: str = ""

    def run(self, folder: Path) -> None:
        parts = []
        with open(folder / REJECTS, "wb") as rejects:
            for number, (path, identity) in enumerate(self.inputs):
                part = folder / f"part-{number:05d}.parquet"
                self._one_file(path, identity, part, rejects)
                parts.append({"name": part.name, "bytes": part.stat().st_size, "sha256": sha256_file(part)})
        self._check()
        (folder / MANIFEST).write_text(json.dumps(self._manifest(parts), indent=1), encoding="utf-8")

    def _one_file(self, path: Path, identity: FileIdentity, part: Path, rejects: BinaryIO) -> None:
        options = self.options
        with pq.ParquetWriter(
            part, SCHEMA, compression=options.compression.upper(), use_dictionary=True, write_page_checksum=True
        ) as writer:
            for first, lines in read_lines(path, options.block_bytes, identity.lines):
                parsed = parse_block(lines, first)
                self.rows_in += len(lines)
                self.short += parsed.short
                self._count(parsed.table)
                if parsed.table.num_rows:
                    writer.write_table(parsed.table.combine_chunks())
                self._set_aside(path, parsed.rejects, rejects)
                self.progress(f"{self.name}: {path.name}, {self.rows_in:,} rows read")
        if stamp(path)[:2] != [identity.bytes, identity.mtime_ns]:
            raise UserError(f"{path}: changed while it was read; try again once it is complete")

    def _count(self, table: pa.Table) -> None:
        self.rows_out += table.num_rows
        for name in COLUMNS:
            self.nulls[name] += table.column(name).null_count

    def _set_aside(self, path: Path, found: list[Reject], rejects: BinaryIO) -> None:
        for reject in found:
            self.reasons[reject.reason] += 1
            self.first_reject = self.first_reject or f"{path.name} line {reject.line}: {reject.reason}"
            head = f"{path.name}\t{reject.line}\t{reject.reason}\t{reject.column}\t"
            rejects.write(head.encode() + reject.raw + b"\n")
        if not self.rows_out and self.reasons.total() >= HOPELESS:
            self._refuse()

    def _check(self) -> None:
        if not self.rows_in:
            raise UserError(f"{self.inputs[0][0] if self.inputs else self.name}: an empty file, no rows to prepare")
        if not self.rows_out:
            self._refuse()
        if self.rows_in != self.rows_out + self.reasons.total():
            raise AssertionError(f"{self.name}: {self.rows_in} rows in, {self.rows_out} out, {self.reasons} set aside")

    def _refuse(self) -> None:
        raise UserError(
            f"{self.inputs[0][0]}: not the Criteo format (40 tab-separated fields, no header): none of the first "
            f"{self.rows_in:,} lines can be read ({self.first_reject})"
        )

    def _manifest(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "inputs": [asdict(identity) for _, identity in self.inputs],
            "options": {**asdict(self.options), "rows": self.rows},
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_short": self.short,
            "rows_rejected": self.reasons.total(),
            "rejected": dict(sorted(self.reasons.items())),
            "nulls": dict(self.nulls),
            "parts": parts,
            "software": _software(),
        }


def _software() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("nestlab", "pyarrow", "numpy", "datasets"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
