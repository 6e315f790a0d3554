"""Reading the store: every run under a results folder as a table, and one run with its tables."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.results import machine, manifest
from nestlab.results.run import Run

if TYPE_CHECKING:
    import pandas

# Every field is read as JSON or text and converted afterwards: manifests of other schema versions, or with a field of
# an unexpected type, then cost one empty cell and not the whole list.
_TEXT = ("run_id", "experiment", "title", "status", "how", "via", "start", "end", "config_hash", "exception")
_PARSED = ("params", "seed", "dataset", "summary", "commit", "process", "accelerator")
_NUMBERS = {"schema_version": "BIGINT", "duration_s": "DOUBLE", "exit_code": "BIGINT", "world_size": "BIGINT"}


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run read back."""

    path: Path
    manifest: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return sorted(path.stem for path in (self.path / "tables").glob("[!.]*.parquet"))

    def table(self, name: str) -> pandas.DataFrame:
        import pandas

        path = self.path / "tables" / f"{name}.parquet"
        if not path.is_file():
            raise UserError(f"run {self.id} has no table '{name}': it has {', '.join(self.tables) or 'none'}")
        return pandas.read_parquet(path)


def list_runs(results_dir: str | Path = "results") -> pandas.DataFrame:
    """All runs under a results folder, oldest first.

    A run that says `running` and whose process has ended on this host is listed as killed; a folder whose manifest
    cannot be read is listed as failed, with the reason.
    """
    import pandas

    good, broken = _sort_out(Path(results_dir))
    frame = _query(good) if good else pandas.DataFrame(columns=[*_TEXT, *_NUMBERS, *_PARSED, "path"])
    if broken:
        frame = pandas.concat([frame, pandas.DataFrame(broken).reindex(columns=frame.columns)], ignore_index=True)
    for name in _PARSED:
        frame[name] = pandas.Series([_parsed(value) for value in frame[name]], index=frame.index, dtype=object)
    frame = _repaired(frame)
    gone = [i for i in frame.index[frame["status"] == "running"] if machine.is_gone(frame.at[i, "process"])]
    for i in gone:
        frame.at[i, "status"] = "killed"
        frame.at[i, "exception"] = "its process is gone"
    return frame.drop(columns="process").sort_values(["start", "run_id"], na_position="first", ignore_index=True)


def load(run: Run | LoadedRun | str | Path, results_dir: str | Path = "results") -> LoadedRun:
    """A run by itself, by its folder, or by the beginning of its id.

    Raises:
        UserError: no run, or more than one, has that name.
    """
    folder = run.path if isinstance(run, Run | LoadedRun) else _find(str(run), Path(results_dir))
    try:
        content = manifest.read(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"run {folder.name}: its manifest cannot be read: {error}") from None
    if content.get("status") == "running" and machine.is_gone(content.get("process")):
        content |= {"status": "killed", "exception": "its process is gone"}
    return LoadedRun(folder, content)


def _repaired(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Gives every row an id, an experiment and one of the known statuses, whatever its manifest lacks."""
    text = [*_TEXT, "path"]
    frame[text] = frame[text].astype(object).where(frame[text].notna(), None)
    for i, path in frame["path"].items():
        frame.at[i, "run_id"] = frame.at[i, "run_id"] or Path(path).name
        frame.at[i, "experiment"] = frame.at[i, "experiment"] or Path(path).parent.name
        if frame.at[i, "status"] not in manifest.STATUSES:
            frame.at[i, "exception"] = f"its manifest has an unknown status: {frame.at[i, 'status']}"
            frame.at[i, "status"] = "failed"
    return frame


def _sort_out(results_dir: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Manifests that are JSON objects, and a row for each that is not: DuckDB would give up on the whole list."""
    good, broken = [], []
    for path in sorted(results_dir.glob(f"*/*/{manifest.FILE}")):
        try:
            manifest.read(path.parent)
            good.append(str(path))
        except (OSError, ValueError) as error:
            reason = f"its manifest cannot be read: {error}"
            row = {"run_id": path.parent.name, "experiment": path.parent.parent.name, "path": str(path.parent)}
            broken.append(row | {"status": "failed", "exception": reason})
    return good, broken


def _query(files: list[str]) -> pandas.DataFrame:
    import duckdb

    columns = dict.fromkeys(_TEXT, "VARCHAR") | dict.fromkeys((*_PARSED, *_NUMBERS), "JSON")
    chosen = [_quoted(name) for name in _TEXT]
    chosen += [f"TRY_CAST({_quoted(n)}->>'$' AS {_NUMBERS[n]}) AS {_quoted(n)}" for n in _NUMBERS]
    chosen += [f"CAST({_quoted(name)} AS VARCHAR) AS {_quoted(name)}" for name in _PARSED]
    sql = f"SELECT {', '.join(chosen)}, filename FROM read_json(?, columns=?, filename=true, format='auto')"
    with duckdb.connect() as connection:
        frame = connection.execute(sql, [files, columns]).df()
    frame["path"] = [os.path.dirname(name) for name in frame.pop("filename")]
    return frame


def _quoted(name: str) -> str:
    return f'"{name}"'


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else None


def _find(name: str, results_dir: Path) -> Path:
    direct = Path(name)
    if (direct / manifest.FILE).is_file():
        return direct.resolve()
    found = [path.parent for path in results_dir.glob(f"*/*/{manifest.FILE}") if path.parent.name.startswith(name)]
    exact = [path for path in found if path.name == name]
    found = exact or found
    if len(found) == 1:
        return found[0].resolve()
    if not found and direct.is_dir():
        raise UserError(f"{name} is a folder without {manifest.FILE}: no run; nestlab results list shows what there is")
    if not found:
        raise UserError(f"no run '{name}' in {results_dir}: nestlab results list shows what there is")
    ids = ", ".join(sorted(path.name for path in found)[:5])
    raise UserError(f"'{name}' is the beginning of {len(found)} runs ({ids}): give more of the id")
