"""What `nestlab data prepare / describe / synth / reorder` do, free of argument parsing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from nestlab.data import registry
from nestlab.data.dataset import Dataset
from nestlab.data.opening import open_dataset
from nestlab.data.prepare import PrepareOptions
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.data.access import AccessOptions
    from nestlab.data.reorder import ReorderOptions
    from nestlab.data.reorder_map import IdMap


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
    access: AccessOptions | None = None,
) -> dict[str, pd.DataFrame]:
    """Statistics as data frames: `dataset` (one row), `dense`, `categorical` (one row a column), `inputs`, `rejected`.

    KuaiRand has more of them; see `Dataset.describe`. Column statistics are over the first `sample` rows at most;
    `dataset.described_rows` says how many. With `access`, how ids are looked up too: see `nestlab.data.access`.

    Raises:
        UserError: as `open_dataset`, or sample below 1.
    """
    if sample < 1:
        raise UserError(f"sample={sample}: choose 1 or more rows")
    dataset = prepare(name, root, rows=rows, seed=seed, file=file, prepared=prepared)
    described = dataset.describe(sample)
    if access is None:
        return described
    from nestlab.data.access import access_statistics  # compiled kernels: only where they are wanted
    from nestlab.data.access_plot import by_feature

    return {**described, **by_feature(access_statistics(dataset, access))}


def reorder(
    name: str,
    root: str | Path = "datasets",
    *,
    options: ReorderOptions | None = None,
    rows: int | None = None,
    seed: int = 0,
    prepared: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Dataset, IdMap]:
    """Prepares a data set and its reordering; `dataset.reordered(id_map)` reads by it.

    Raises:
        UserError: as `open_dataset` and `nestlab.data.reorder.reorder`.
    """
    from nestlab.data import reorder as reordering  # compiled kernels: only where they are wanted

    dataset = prepare(name, root, rows=rows, seed=seed, prepared=prepared, progress=progress)
    return dataset, reordering.reorder(dataset, options, progress or to_stderr())


def synth(
    kind: str, out: str | Path, rows: int = 100_000, seed: int = 0, progress: Callable[[str], None] | None = None
) -> list[Path]:
    """Writes a synthetic twin's raw files below the folder `out`; returns their paths, that of truth.json last.

    Raises:
        UserError: unknown kind, bad numbers, or a file is there that this did not write.
    """
    twin = registry.twin(kind)
    if twin is None or twin.write is None:
        raise UserError(f"synth '{kind}' is unknown: choose criteo, kuairand or kuairand-27k")
    return twin.write(Path(out), rows, seed, progress or to_stderr())
