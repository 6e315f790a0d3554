"""The one way in: a name and a folder of raw files → an open data set."""

from __future__ import annotations

from pathlib import Path

from nestlab import paths
from nestlab.data.dataset import Dataset
from nestlab.data.folders import prepared_root
from nestlab.data.prepare import PrepareOptions, Progress
from nestlab.data.registry import Request, resolve
from nestlab.errors import UserError


def open_dataset(
    name: str,
    root: str | Path = "datasets",
    *,
    rows: int | None = None,
    seed: int = 0,
    options: PrepareOptions | None = None,
    prepared: str | Path | None = None,
    file: str | Path | None = None,
    progress: Progress = lambda message: None,
) -> Dataset:
    """Opens a data set, preparing it first where that has not been done. Nothing is ever written below `root`'s data.

    Args:
        name: criteo-1tb, criteo-kaggle, criteo-synth, or criteo: the first of these three that is there; kuairand-pure,
            kuairand-1k, kuairand-27k, kuairand-synth, or kuairand: the first of these four.
        root: the folder with the raw files; where a relative one leads says `nestlab.paths`.
        rows: real data: only the first so many rows of the files; None is all. A twin: how many to make, 100,000 by
            default.
        seed: of a twin.
        options: how raw files are prepared; KuaiRandOptions has more of them.
        prepared: the folder for prepared data; None: NESTLAB_PREPARED, or the default place.
        file: one raw file to read in place of those that the name stands for; a relative path may start at `root`.
        progress: called with a line of text now and then.

    Raises:
        UserError: the data is absent, cannot be read, or the prepared folder cannot be written.
    """
    given, root = Path(root), paths.data_root(root)
    source = resolve(name, root)
    if source.name != name and not root.is_dir() and given != Path("datasets"):
        # The twin takes the place of data that is not there; a folder that is not there is a slip of the pen.
        raise UserError(f"no folder '{given}'; name the one that holds the raw files (criteo-1tb/, KuaiRand-Pure/, …)")
    if file is not None and name != source.name:
        raise UserError(f"file={file}: say which format it has: criteo-kaggle, say, in place of '{name}'")
    request = Request(
        root=root,
        rows=rows,
        seed=seed,
        options=options or PrepareOptions(),
        prepared=prepared_root(prepared).absolute(),
        file=_locate(Path(file), Path(root)) if file is not None else None,
        progress=progress,
    )
    return source.open(source, request)


def _locate(file: Path, root: Path) -> Path:
    if file.is_file():
        return file
    if (root / file).is_file():
        return root / file
    raise UserError(f"file={file}: no such file, neither here nor under '{root}'")
