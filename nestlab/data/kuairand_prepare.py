"""Raw KuaiRand files → a prepared folder: the log in the order of time, feature tables, events by user.

The log (folder `log`, raw columns) holds the columns of the files and, for each row, the dense positions of its user
and video in the feature tables (−1: no row there), its place among the events, and how many events of its user came
before. The feature tables (folders `users` and `videos`) are joined by position when a batch is made: 32 million videos
would not bear a materialised join.

Four stages, each of which goes on where a killed process left it: the tables are read; the log is read into runs
sorted by time; these are merged; the events are laid out by user. What is resident does not depend on the rows of the
log, but for 16 bytes a user; it does on those of the feature tables, by 4 to 20 bytes each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nestlab.data import columns, kuairand_merge, kuairand_runs, rejects, table_reading
from nestlab.data.allocation import kept_memory
from nestlab.data.identity import FileIdentity, identify
from nestlab.data.journal import SPOOL, Journal
from nestlab.data.kuairand_files import RANDOM, STANDARD, USERS, VIDEOS, Survey
from nestlab.data.kuairand_merge import LOG, Merged, Merger, write_events
from nestlab.data.kuairand_runs import LogReader, LogRuns
from nestlab.data.kuairand_tables import USER_TABLE, VIDEO_TABLE
from nestlab.data.positions import Finder
from nestlab.data.prepare import Prepared, PrepareOptions, Progress, describe_files, prepare_folder
from nestlab.data.rejects import Rejects
from nestlab.data.stages import Stages
from nestlab.data.table_reading import FeatureTable, read_table
from nestlab.errors import UserError

SCHEMA_VERSION = 2  # raise it whenever the same input would be prepared otherwise
ROLES = {"standard": (STANDARD,), "random": (RANDOM,), "both": (STANDARD, RANDOM)}
_FORMS = {USERS: USER_TABLE, VIDEOS: VIDEO_TABLE}


@dataclass(frozen=True)
class KuaiRandOptions(PrepareOptions):
    """How KuaiRand is prepared.

    Attributes:
        duplicates: `keep` or `drop` the later copies of a row that equals an earlier one in all 19 columns. They are
            counted either way. A copy is never in the history of another.
        logs: `standard`, `random` (videos shown at random) or `both`.
    """

    duplicates: str = "keep"
    logs: str = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duplicates not in ("keep", "drop"):
            raise UserError(f"duplicates='{self.duplicates}': choose keep or drop")
        if self.logs not in ROLES:
            raise UserError(f"logs='{self.logs}': choose {', '.join(ROLES)}")


def prepare_kuairand(
    name: str, survey: Survey, root: Path, rows: int | None, options: KuaiRandOptions, progress: Progress
) -> Prepared:
    """Prepares the first `rows` rows (None: all) of the log files that `options` wants, under the folder `root`.

    Raises:
        UserError: a file cannot be read or is of another format; or `root` cannot be written.
    """
    logs, tables = survey.paths(*ROLES[options.logs]), survey.paths(USERS, VIDEOS)
    progress(f"{name}: reading the identity of {len(logs) + len(tables)} file(s)")
    log_ids = identify(logs, rows, root / "hashes", header=1)
    table_ids = identify(tables, None, root / "hashes")
    inputs = [*zip(logs, log_ids, strict=False), *zip(tables, table_ids, strict=True)]
    identity = {
        "schema_version": SCHEMA_VERSION,
        "format": "kuairand",
        "inputs": [[path.name, *entry.content] for path, entry in inputs],
        "options": asdict(options),
    }
    build = _Build(name, survey, inputs, rows, options, Stages(name, progress))
    return prepare_folder(name, root, identity, build.run, resumable=True)


@dataclass
class _Build:
    """One preparation in its temporary folder."""

    name: str
    survey: Survey
    inputs: list[tuple[Path, FileIdentity]]
    rows: int | None
    options: KuaiRandOptions
    stages: Stages
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, folder: Path) -> dict[str, Any]:
        for module in (table_reading, kuairand_runs, kuairand_merge):
            module.warm_up()  # here, so that no stage is timed with the compiler
        with kept_memory(), Journal(folder) as journal:
            with rejects.reopened(folder, journal.found) as file:
                tables = self._read_tables(folder, journal, file)
                log, aside = self._read_logs(folder, journal, file)
            merged = self._merge(folder, journal, log, tables)
            with self.stages.measure("events", journal.of("events")) as stage:
                write_events(folder, merged.events, journal, stage)
            merged.events.close()
        return self._facts(folder, merged, aside, tables)

    def _read_tables(self, folder: Path, journal: Journal, file: BinaryIO) -> dict[str, FeatureTable]:
        known = journal.of("table")
        aside = Rejects(file, known[-1]["rejects"] if known else None)
        tables = {}
        with self.stages.measure("tables", known) as stage:
            for role, form in _FORMS.items():
                if entry := next((entry for entry in known if entry["role"] == role), None):
                    tables[role] = FeatureTable.from_facts(folder / role, form.key, entry)
                else:
                    tables[role] = self._table(folder, role, aside)
                    journal.add("table", role=role, rejects=aside.state(), **tables[role].facts())
                    stage.add(tables[role].rows_in, role)
                for path in self.survey.found[role][:1]:
                    self._note(path, role, tables[role].rows_in, tables[role].rejected)
        self._of_tables = aside
        return tables

    def _table(self, folder: Path, role: str, aside: Rejects) -> FeatureTable:
        path = next(iter(self.survey.found[role]), None)

        def set_aside(found: list[rejects.Reject]) -> None:
            if path is not None:
                aside.add(path, found)

        return read_table(path, _FORMS[role], folder / role, self.options.block_bytes, set_aside)

    def _read_logs(self, folder: Path, journal: Journal, file: BinaryIO) -> tuple[LogRuns, Rejects]:
        roles = {path: role for role in ROLES["both"] for path in self.survey.found[role]}
        inputs = [(path, identity) for path, identity in self.inputs if path in roles]
        if not inputs:
            raise UserError(f"{self.name}: no rows to prepare")
        known = journal.of("run")
        aside = Rejects(file, known[-1]["rejects"] if known else None)
        with self.stages.measure("read", known) as stage:
            reader = LogReader(inputs, self.options.block_bytes, folder / f"log{SPOOL}", aside, journal, stage)
            log = reader.read()
        for (path, _), rows_in, rejected in zip(inputs, log.rows_in, log.rejected, strict=True):
            self._note(path, roles[path], rows_in, rejected)
        return log, aside

    def _merge(self, folder: Path, journal: Journal, log: LogRuns, tables: dict[str, FeatureTable]) -> Merged:
        with self.stages.measure("merge", journal.of("piece")) as stage:
            finders = Finder(tables[USERS].keys()), Finder(tables[VIDEOS].keys())
            merger = Merger(folder, log, finders, self.options.duplicates == "drop", journal, stage)
            merged = merger.run()
        log.runs.close()
        for entry, count in zip(self._log_files(), merged.duplicates, strict=True):
            entry["duplicates"] = count
        return merged

    def _facts(self, folder: Path, merged: Merged, aside: Rejects, tables: dict[str, FeatureTable]) -> dict[str, Any]:
        with self.stages.measure("hash") as stage:
            parts = describe_files(columns.files(folder / LOG), folder)
            beside = [*columns.files(folder / USERS), *columns.files(folder / VIDEOS), *sorted(folder.glob("*.npy"))]
            described = describe_files(beside, folder)
            stage.add(merged.rows)
        return {
            "layout": "columns",
            "inputs": [{**self.files[path.name], **asdict(identity)} for path, identity in self.inputs],
            "options": {**asdict(self.options), "rows": self.rows},
            **self._account(merged, aside),
            "users": merged.users,
            "videos": merged.videos,
            "rows_without_user_features": merged.without_user,
            "rows_without_video_features": merged.without_video,
            "rejected_in_tables": dict(sorted(self._of_tables.reasons.items())),
            "words": {role: table.words for role, table in tables.items()},
            "tables": described,
            "parts": parts,
            "stages": self.stages.done,
        }

    def _account(self, merged: Merged, aside: Rejects) -> dict[str, Any]:
        """Every row of the log, once."""
        rows_in, copies = sum(entry["rows_in"] for entry in self._log_files()), sum(merged.duplicates)
        dropped = copies if self.options.duplicates == "drop" else 0
        if rows_in != merged.rows + dropped + aside.total:
            raise AssertionError(
                f"{self.name}: {rows_in} rows in, {merged.rows} out, {dropped} dropped, {aside.reasons} set aside"
            )
        rows = {"rows_in": rows_in, "rows_out": merged.rows, "rows_duplicate": copies, "rows_dropped": dropped}
        return {**rows, **aside.facts()}

    def _log_files(self) -> list[dict[str, Any]]:
        return [entry for entry in self.files.values() if entry["role"] in ROLES["both"]]

    def _note(self, path: Path, role: str, rows_in: int, rejected: int) -> None:
        self.files[path.name] = {"role": role, "rows_in": rows_in, "rows_rejected": rejected, "duplicates": 0}
