"""What `nestlab data prepare / describe / synth` do, free of argument parsing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from nestlab.data import synthetic
from nestlab.data.dataset import Dataset, DatasetInfo
from nestlab.data.opening import open_dataset
from nestlab.data.prepare import PrepareOptions
from nestlab.errors import UserError


def to_stderr(every_s: float = 2.0) -> Callable[[str], None]:
    """A progress callback: the newest line to standard error, at most once in `every_s` seconds."""
    last = time.monotonic()

    def show(message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            print(message, file=sys.stderr, flush=True)

    return show


def prepare(
    name: str,
    root: str | Path = "datasets",
    *,
    rows: int | None = None,
    seed: int = 0,
    file: str | Path | None = None,
    prepared: str | Path | None = None,
    options: PrepareOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> Dataset:
    """Prepares a data set and its memory-mapped copy, and returns it; `.info.counts` and `.manifest` say what was done.

    Raises:
        UserError: as `open_dataset`.
    """
    dataset = open_dataset(
        name,
        root,
        rows=rows,
        seed=seed,
        options=options,
        prepared=prepared,
        file=file,
        progress=progress or to_stderr(),
    )
    _ = dataset.table
    return dataset


def describe(
    name: str,
    root: str | Path = "datasets",
    *,
    rows: int | None = None,
    seed: int = 0,
    file: str | Path | None = None,
    prepared: str | Path | None = None,
    sample: int = 1_000_000,
) -> dict[str, pd.DataFrame]:
    """Statistics as data frames: `dataset` (one row), `dense`, `categorical` (one row a column), `inputs`, `rejected`.

    Column statistics are over the first `sample` rows at most; `dataset.described_rows` says how many.

    Raises:
        UserError: as `open_dataset`, or sample below 1.
    """
    if sample < 1:
        raise UserError(f"sample={sample}: choose 1 or more rows")
    dataset = prepare(name, root, rows=rows, seed=seed, file=file, prepared=prepared)
    table = dataset.table.slice(0, sample)
    manifest = dataset.manifest
    return {
        "dataset": _overview(dataset.info, table),
        "dense": pd.DataFrame([_dense(name, table.column(name)) for name in dataset.dense_names]),
        "categorical": pd.DataFrame([_categorical(name, table.column(name)) for name in dataset.features]),
        "inputs": pd.DataFrame(manifest["inputs"]),
        "rejected": pd.DataFrame(sorted(manifest["rejected"].items()), columns=["reason", "rows"]),
    }


def synth(
    kind: str, out: str | Path, rows: int = 100_000, seed: int = 0, progress: Callable[[str], None] | None = None
) -> list[Path]:
    """Writes a synthetic raw file and its truth.json into the folder `out`; returns both paths.

    Raises:
        UserError: unknown kind, bad numbers, or a file is there that this did not write.
    """
    if kind not in ("criteo", "criteo-synth"):
        raise UserError(f"synth '{kind}' is unknown: choose criteo")
    return synthetic.write_twin(Path(out), rows, seed, progress or to_stderr())


def _overview(info: DatasetInfo, table: pa.Table) -> pd.DataFrame:
    row = {
        "title": info.title,
        "id": info.id,
        "kind": info.kind,
        **info.counts,
        "described_rows": table.num_rows,
        "click_rate": pc.mean(table.column("label")).as_py(),
        "convention": info.convention,
        "fingerprint": info.fingerprint,
    }
    return pd.DataFrame([row])


def _dense(name: str, column: pa.ChunkedArray) -> dict[str, object]:
    extremes = pc.min_max(column)
    median = pc.quantile(column, q=0.5)[0].as_py()
    negative = pc.sum(pc.less(column, 0)).as_py() or 0
    return {
        "column": name,
        "missing": column.null_count / len(column),
        "negative": negative / len(column),
        "min": extremes["min"].as_py(),
        "median": median,
        "max": extremes["max"].as_py(),
    }


def _categorical(name: str, column: pa.ChunkedArray) -> dict[str, object]:
    counts = pc.value_counts(column.drop_null()).field("counts").to_numpy()
    present = int(counts.sum())
    return {
        "column": name,
        "missing": column.null_count / len(column),
        "unique": len(counts),
        "top_share": counts.max() / present if present else 0.0,
        "singletons": float((counts == 1).mean()) if present else 0.0,
    }
