"""One table of many runs as one DataFrame, by DuckDB over their Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nestlab.errors import UserError
from nestlab.results.store import list_runs

if TYPE_CHECKING:
    import pandas

_OF_THE_RUN = ("run_id", "experiment", "seed", "how", "dataset", "fingerprint", "config_hash", "start")


def table_over_runs(
    name: str,
    *,
    experiment: str | None = None,
    results_dir: str | Path = "results",
    statuses: tuple[str, ...] = ("ok",),
) -> pandas.DataFrame:
    """The rows of `tables/<name>.parquet` of every run that has one, oldest run first.

    Before the table's own columns stand those of the run: run_id, experiment, seed, how, dataset, fingerprint,
    config_hash, start (a column of the table that has such a name gets `_` behind it). Runs whose tables have other
    columns are joined by name; what one lacks is empty.

    Raises:
        UserError: no such run has the table, or two runs hold types that do not go together.
    """
    import duckdb

    runs = _described(list_runs(results_dir), experiment, statuses)
    files = [str(Path(path) / "tables" / f"{name}.parquet") for path in runs["path"]]
    runs = runs.assign(file=files).drop(columns="path")
    runs = runs[[Path(file).is_file() for file in files]]
    if runs.empty:
        of = f" of experiment '{experiment}'" if experiment else ""
        raise UserError(f"no run{of} in {results_dir} has a table '{name}'")
    with duckdb.connect() as connection:
        connection.register("runs", runs.reset_index(names="place"))
        sql = """SELECT runs.* EXCLUDE (file, place), t.* EXCLUDE (filename, file_row_number)
            FROM read_parquet(?, union_by_name=true, filename=true, file_row_number=true) t
            JOIN runs ON runs.file = t.filename ORDER BY place, file_row_number"""
        try:
            frame = connection.execute(sql, [list(runs["file"])]).df()
        except duckdb.Error as error:
            raise UserError(f"table '{name}' cannot be joined over runs: {str(error).splitlines()[0]}") from None
    own = frame.columns[len(_OF_THE_RUN) :]
    return frame.set_axis([*_OF_THE_RUN, *(_renamed(column) for column in own)], axis=1)


def _described(frame: pandas.DataFrame, experiment: str | None, statuses: tuple[str, ...]) -> pandas.DataFrame:
    """The columns of a run that go before those of the table."""
    import pandas

    frame = frame[frame["status"].isin(statuses)]
    if experiment is not None:
        frame = frame[frame["experiment"] == experiment]
    data = [value if isinstance(value, dict) else {} for value in frame["dataset"]]
    seeds = pandas.array([value if isinstance(value, int) else None for value in frame["seed"]], dtype="Int64")
    frame = frame.assign(
        seed=seeds, dataset=[d.get("id") for d in data], fingerprint=[d.get("fingerprint") for d in data]
    )
    return frame[[*_OF_THE_RUN, "path"]].reset_index(drop=True)


def _renamed(column: str) -> str:
    """DuckDB has numbered a column that both sides have: `seed` of the table comes as `seed_1`."""
    stem = column.removesuffix("_1")
    return f"{stem}_" if stem != column and stem in _OF_THE_RUN else column
