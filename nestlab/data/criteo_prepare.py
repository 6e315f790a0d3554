"""Raw Criteo files → one Parquet folder with a manifest: once, streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nestlab.data import rejects
from nestlab.data.allocation import kept_memory
from nestlab.data.criteo_format import COLUMNS, SCHEMA, Parsed, parse_text
from nestlab.data.identity import FileIdentity, identify
from nestlab.data.journal import Journal
from nestlab.data.lines import BOM, Block, read_blocks, starts_with
from nestlab.data.prepare import (
    HOPELESS,
    Prepared,
    PrepareOptions,
    Progress,
    ahead,
    check_unchanged,
    describe_file,
    prepare_folder,
)
from nestlab.data.rejects import Rejects
from nestlab.data.stages import Stages
from nestlab.errors import UserError

SCHEMA_VERSION = 2  # raise it whenever the same input would be prepared otherwise


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
        # Marked, since such files were once prepared without their first row.
        "inputs": [
            [*entry.content, *(["BOM"] if starts_with(path, BOM) else [])]
            for path, entry in zip(paths, inputs, strict=False)
        ],
        "options": _of_prepare(options),
    }
    build = _Build(name, list(zip(paths, inputs, strict=False)), rows, options, progress)
    return _named(prepare_folder(name, root, identity, build.run, resumable=True), inputs)


def _named(prepared: Prepared, inputs: Sequence[FileIdentity]) -> Prepared:
    """With the names that the inputs have now: the same bytes may have been prepared under others, and a day is known
    by its name.
    """
    parts = [{**part, "input": each.name} for part, each in zip(prepared.manifest["parts"], inputs, strict=True)]
    named = {"inputs": [asdict(each) for each in inputs], "parts": parts}
    return Prepared(prepared.folder, {**prepared.manifest, **named})


@dataclass
class _Build:
    """One preparation in its temporary folder, a file (of the 1TB logs: a day) after the other; its counters become
    the manifest. A file that an earlier, killed process finished is not read again.
    """

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
        stages = Stages(self.name, self.progress)
        with kept_memory(), Journal(folder) as journal:
            done = journal.of("part")
            parts = [entry["part"] for entry in done]
            if done:
                self._restore(done[-1])
            with rejects.reopened(folder, journal.found) as file, stages.measure("read", done) as stage:
                aside = Rejects(file, done[-1]["rejects"] if done else None)
                for number in range(len(done), len(self.inputs)):
                    before = self.rows_in
                    parts.append(self._one_file(number, folder, aside))
                    journal.add("part", part=parts[-1], rejects=aside.state(), **self._counters())
                    stage.rows += self.rows_in - before
            self._check(aside)
        return {**self._facts(parts, aside), "stages": stages.done}

    def _counters(self) -> dict[str, Any]:
        return {"rows_in": self.rows_in, "rows_out": self.rows_out, "short": self.short, "nulls": dict(self.nulls)}

    def _restore(self, counters: dict[str, Any]) -> None:
        self.rows_in, self.rows_out, self.short = (counters[name] for name in ("rows_in", "rows_out", "short"))
        self.nulls = Counter(counters["nulls"])

    def _one_file(self, number: int, folder: Path, aside: Rejects) -> dict[str, Any]:
        """Writes the part of one file; how the manifest lists it: `rows` of it too, for who reads by days."""
        (path, identity), options, before = self.inputs[number], self.options, self.rows_out
        part = folder / f"part-{number:05d}.parquet"
        blocks = read_blocks(path, options.block_bytes, identity.lines)
        with pq.ParquetWriter(
            part, SCHEMA, compression=options.compression.upper(), use_dictionary=True, write_page_checksum=True
        ) as writer:
            for lines, parsed in ahead(_parsed, blocks):
                self.rows_in += lines
                self.short += parsed.short
                self._count(parsed.table)
                if parsed.table.num_rows:
                    writer.write_table(parsed.table.combine_chunks())
                aside.add(path, parsed.rejects)
                if not self.rows_out and aside.total >= HOPELESS:
                    self._refuse(aside)
                self.progress(f"{self.name}: {path.name}, {self.rows_in:,} rows read")
        check_unchanged(path, identity)
        return {**describe_file(part), "rows": self.rows_out - before, "input": path.name}

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
            "options": {**_of_prepare(self.options), "rows": self.rows},
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_short": self.short,
            **aside.facts(),
            "nulls": dict(self.nulls),
            "parts": parts,
        }


def _of_prepare(options: PrepareOptions) -> dict[str, Any]:
    """What decides the rows: how they are read afterwards does not."""
    return {each.name: getattr(options, each.name) for each in fields(PrepareOptions)}


def _parsed(block: Block) -> tuple[int, Parsed]:
    text = block.text.removeprefix(BOM) if block.first == 1 else block.text
    return block.lines, parse_text(text, block.lines, block.first)
