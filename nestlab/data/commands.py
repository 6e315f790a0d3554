"""What `nestlab data prepare / describe / synth / reorder` do, free of argument parsing."""

from __future__ import annotations

import io
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
from nestlab.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nestlab.data.access import AccessOptions
    from nestlab.data.reorder import ReorderOptions
    from nestlab.data.reorder_map import IdMap

FIGURES = (".png", ".svg")


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
    figure: str | Path | None = None,
) -> dict[str, pd.DataFrame]:
    """Statistics as data frames: `dataset` (one row), `dense`, `categorical` (one row a column), `inputs`, `rejected`.

    KuaiRand has more of them; see `Dataset.describe`. Column statistics are over the first `sample` rows at most;
    `dataset.described_rows` says how many. With `access`, how ids are looked up too: see `nestlab.data.access`; and
    `figure` is a file for the curves of misses.

    Raises:
        UserError: as `open_dataset`, sample below 1, or the figure cannot be written.
    """
    if sample < 1:
        raise UserError(f"sample={sample}: choose 1 or more rows")
    if figure is not None:
        _check_figure(Path(figure))
    dataset = prepare(name, root, rows=rows, seed=seed, file=file, prepared=prepared)
    described = dataset.describe(sample)
    if access is None:
        return described
    from nestlab.data.access import access_statistics  # compiled kernels: only where they are wanted
    from nestlab.data.access_plot import by_feature, miss_ratio_figure

    frames = access_statistics(dataset, access)
    if figure is not None:
        drawn = miss_ratio_figure(frames, {"dataset": dataset.info.title, "how": "measured"})
        _write_figure(drawn, Path(figure))
    return {**described, **by_feature(frames)}


def _check_figure(path: Path) -> None:
    """Asked before the work, which may take long."""
    if path.suffix not in FIGURES:
        raise UserError(f"figure '{path}': choose a name that ends in {' or '.join(FIGURES)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"figure '{path}': name a file in a folder that is there")


def _write_figure(figure: Figure, path: Path) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], bbox_inches="tight")
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        raise UserError(f"figure '{path}': cannot be written ({error.strerror}); name another place") from error


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
