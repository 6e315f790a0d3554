"""Criteo 1TB, Criteo Kaggle and their synthetic twin, as sources of the registry."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nestlab.data import synthetic
from nestlab.data.criteo_conventions import CONVENTIONS, DEFAULT, Convention, convention
from nestlab.data.criteo_format import DENSE_NAMES, FEATURES
from nestlab.data.criteo_prepare import prepare_files
from nestlab.data.criteo_reading import ConventionalCriteo, Criteo, CriteoOptions
from nestlab.data.criteo_splits import Splits, days_of, splits_of
from nestlab.data.criteo_twin_shape import SHAPES, CriteoShape
from nestlab.data.dataset import Dataset, DatasetInfo
from nestlab.data.prepare import Prepared, PrepareOptions, Progress
from nestlab.data.registry import Request, Source, register, register_family
from nestlab.data.twins import is_twin
from nestlab.errors import UserError

TWIN_ROWS = 100_000
_DAY = re.compile(r"day_(\d+)(\.gz)?")


def find_1tb(root: Path) -> list[Path]:
    """The day files in the order of the days, of the first folder that has any; plain text before gzip."""
    for folder in (root / "criteo-1tb", root):
        days: dict[int, Path] = {}
        for path in sorted(folder.glob("day_*")):  # day_0 sorts before day_0.gz
            if (match := _DAY.fullmatch(path.name)) and path.is_file():
                days.setdefault(int(match[1]), path)
        if days:
            return [days[day] for day in sorted(days)]
    return []


def find_kaggle(root: Path) -> list[Path]:
    for folder in (root / "criteo-kaggle", root / "criteo-kaggle" / "dac", root / "dac", root):
        for name in ("train.txt", "train.txt.gz"):
            if (folder / name).is_file():
                return [folder / name]
    return []


def _open_real(source: Source, request: Request) -> Dataset:
    paths = [request.file] if request.file else _of_days(source, request, source.find(request.root))
    if not paths:
        raise UserError(
            f"{source.name}: no {source.places} under '{request.root}'; {source.remedy}; "
            f"or use {source.twin}, which is made on demand"
        )
    prepared = prepare_files(
        source.name,
        paths,
        request.prepared,
        rows=request.rows,
        options=request.options,
        progress=request.progress,
    )
    # A twin written by `nestlab data synth` must not pass for real data because of the name it is read under.
    kind = "synthetic" if any(is_twin(path) for path in paths) else source.kind
    return _dataset(source.name, kind, prepared, request)


def _of_days(source: Source, request: Request, paths: list[Path]) -> list[Path]:
    """The files of the days that were asked for.

    Raises:
        UserError: one of them is not there, or the data set has no days.
    """
    wanted = _criteo(request.options).wanted_days()
    if wanted is None or not paths:
        return paths
    by_day = {int(match[1]): path for path in paths if (match := _DAY.fullmatch(path.name))}
    if missing := [day for day in wanted if day not in by_day]:
        there = ", ".join(map(str, by_day)) or "none: only the 1TB logs come in days"
        raise UserError(f"{source.name}: no day_{missing[0]} under '{request.root}'; days that are there: {there}")
    return [by_day[day] for day in wanted]


def _criteo(options: PrepareOptions) -> CriteoOptions:
    return options if isinstance(options, CriteoOptions) else CriteoOptions(**asdict(options))


def _open_twin(shape: CriteoShape, source: Source, request: Request) -> Dataset:
    if request.file:
        raise UserError(f"{source.name} is made, not read: leave out file={request.file}, or name criteo-kaggle")
    twin = synthetic.twin_files(request.rows or TWIN_ROWS, request.seed, request.progress, shape)
    raw = twin.cached(request.prepared) / shape.raw
    prepared = prepare_files(source.name, [raw], request.prepared, options=request.options, progress=request.progress)
    return _dataset(source.name, source.kind, prepared, request)


def _write_twin(shape: CriteoShape, out: Path, rows: int, seed: int, progress: Progress) -> list[Path]:
    return synthetic.twin_files(rows, seed, progress, shape).publish(out / shape.folder)


def _dataset(name: str, kind: str, prepared: Prepared, request: Request) -> Dataset:
    manifest, made = prepared.manifest, convention(_criteo(request.options).convention)
    rows, splits = manifest["rows_out"], splits_of(made, days_of(manifest["parts"]))
    shown = {"criteo-1tb": "Criteo 1TB", "criteo-kaggle": "Criteo Kaggle"}.get(name, name)
    info = DatasetInfo(
        id=name,
        kind=kind,
        rows=rows,
        fingerprint=prepared.fingerprint,
        title=f"{shown} ({kind if kind == 'real' else kind.upper()}, {rows:,} rows{_titled(made, splits)})",
        counts={key: manifest[key] for key in ("rows_in", "rows_out", "rows_short", "rows_rejected")},
        convention=_said(made, splits),
    )
    if made.first_id is None:
        return Criteo(info, prepared, DENSE_NAMES, FEATURES)
    return ConventionalCriteo(info, prepared, made, splits, request.progress)


def _titled(made: Convention, splits: Splits) -> str:
    """What a title says of a convention; of the default nothing."""
    return "" if made.name == DEFAULT else f", {made.name}, {splits.says}"


def _said(made: Convention, splits: Splits) -> str:
    if made.name == DEFAULT:
        return made.name
    return f"{made.name} ({'; '.join(part for part in (made.says, splits.details) if part)})"


def register_all() -> None:
    register(
        Source(
            name="criteo-1tb",
            kind="real",
            places="criteo-1tb/day_0 … day_23 (or day_N.gz, or day_N itself)",
            remedy="run `nestlab data fetch criteo-1tb --days 0`, or put day_N.gz (CriteoClickLogs, by criteo on "
            "Hugging Face) into criteo-1tb/ there",
            find=find_1tb,
            open=_open_real,
            twin="criteo-1tb-synth",
            conventions=tuple(CONVENTIONS),
        )
    )
    register(
        Source(
            name="criteo-kaggle",
            kind="real",
            places="criteo-kaggle/train.txt (or train.txt.gz, dac/train.txt, train.txt itself)",
            remedy="run `nestlab data fetch criteo-kaggle`, or put the Display Advertising Challenge data (Criteo AI "
            "Lab, or Kaggle) into criteo-kaggle/ there",
            find=find_kaggle,
            open=_open_real,
            twin="criteo-synth",
            conventions=tuple(CONVENTIONS),
        )
    )
    for shape, real in zip(SHAPES, ("Criteo Kaggle", "Criteo 1TB"), strict=True):
        register(
            Source(
                name=shape.name,
                kind="synthetic",
                places="",
                remedy=f"the synthetic twin of {real}, reproducible by rows and seed",
                find=lambda root: [],
                open=partial(_open_twin, shape),
                write=partial(_write_twin, shape),
                conventions=tuple(CONVENTIONS),
            )
        )
    register_family("criteo", ("criteo-1tb", "criteo-kaggle", "criteo-synth"))
