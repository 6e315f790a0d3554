"""Raw Criteo files → one Parquet folder with a manifest: once, streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nestlab.data import rejects
from nestlab.data.criteo_format import COLUMNS, SCHEMA, parse_block
from nestlab.data.identity import FileIdentity, identify
from nestlab.data.lines import read_lines
from nestlab.data.prepare import (
    HOPELESS,
    Prepared,
    PrepareOptions,
    Progress,
    check_unchanged,
    describe_file,
    prepare_folder,
)
from nestlab.data.rejects import Rejects
from nestlab.errors import UserError

SCHEMA_VERSION = 1  # raise it whenever the same input would be prepared otherwise


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
    identity = {
        "schema_version": SCHEMA_VERSION,
        "inputs": [entry.content for entry in inputs],
        "options": asdict(options),
    }
    build = _Build(name, list(zip(paths, inputs, strict=False)), rows, options, progress)
    return prepare_folder(name, root, identity, build.run)


@dataclass
class _Build:
    """One preparation in its temporary folder; its counters become the manifest."""

    name: str
    inputs: list[tuple[Path, FileIdentity]]
    rows: int | None
    options: PrepareOptions
    progress: Progress
    rows_in: int = 0
    rows_out: int = 0
    short: int = 0
    nulls: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COLUMNS, 0)))

    def run(self, folder: Path) -> dict[str, Any]:
        parts = []
        with open(folder / rejects.NAME, "wb") as file:
            aside = Rejects(file)
            for number, (path, identity) in enumerate(self.inputs):
                part = folder / f"part-{number:05d}.parquet"
                self._one_file(path, identity, part, aside)
                parts.append(describe_file(part))
        self._check(aside)
        return self._facts(parts, aside)

    def _one_file(self, path: Path, identity: FileIdentity, part: Path, aside: Rejects) -> None:
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
                aside.add(path, parsed.rejects)
                if not self.rows_out and aside.total >= HOPELESS:
                    self._refuse(aside)
                self.progress(f"{self.name}: {path.name}, {self.rows_in:,} rows read")
        check_unchanged(path, identity)

    def _count(self, table: pa.Table) -> None:
        self.rows_out += table.num_rows
        for name in COLUMNS:
            self.nulls[name] += table.column(name).null_count

    def _check(self, aside: Rejects) -> None:
        if not self.rows_in:
            raise UserError(f"{self.inputs[0][0] if self.inputs else self.name}: an empty file, no rows to prepare")
        if not self.rows_out:
            self._refuse(aside)
        if self.rows_in != self.rows_out + aside.total:
            raise AssertionError(f"{self.name}: {self.rows_in} rows in, {self.rows_out} out, {aside.reasons} set aside")

    def _refuse(self, aside: Rejects) -> None:
        raise UserError(
            f"{self.inputs[0][0]}: not the Criteo format (40 tab-separated fields, no header): none of the first "
            f"{self.rows_in:,} lines can be read ({aside.first})"
        )

    def _facts(self, parts: list[dict[str, Any]], aside: Rejects) -> dict[str, Any]:
        return {
            "inputs": [asdict(identity) for _, identity in self.inputs],
            "options": {**asdict(self.options), "rows": self.rows},
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_short": self.short,
            **aside.facts(),
            "nulls": dict(self.nulls),
            "parts": parts,
        }
