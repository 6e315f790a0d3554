"""KuaiRand-Pure, -1K, -27K and their synthetic twin, as sources of the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from nestlab.data import kuairand_describe, kuairand_synth
from nestlab.data.columns import open_columns
from nestlab.data.dataset import Dataset, DatasetInfo
from nestlab.data.histories import Events
from nestlab.data.kuairand_batches import DENSE_NAMES, FEATURES, SEQUENCE_FEATURES, Joiner, RankCollator, Reading
from nestlab.data.kuairand_files import (
    K1,
    K27,
    PURE,
    RANDOM,
    STANDARD,
    STATISTIC,
    USERS,
    VIDEOS,
    Survey,
    Variant,
    survey,
)
from nestlab.data.kuairand_prepare import ROLES, KuaiRandOptions, prepare_kuairand
from nestlab.data.kuairand_synth_shape import SHAPES, Shape
from nestlab.data.loader import Loader, check_order
from nestlab.data.prepare import Prepared, PrepareOptions
from nestlab.data.registry import Request, Source, register, register_family
from nestlab.data.sequences import SequenceData, SequenceOptions
from nestlab.data.twins import is_twin
from nestlab.errors import UserError

TWIN_ROWS = 100_000
CONVENTION = "kuairand-rank"
_COUNTS = (
    *("rows_in", "rows_out", "rows_duplicate", "rows_dropped", "rows_rejected"),
    *("rows_without_user_features", "rows_without_video_features", "users", "videos"),
)


class KuaiRand(Dataset):
    """KuaiRand, prepared and open. The log in the order of time; the first 80 % of the rows are `train`.

    Attributes:
        sequence_features: what a batch holds beside `features` when `history` is above 0.
    """

    sequence_features = SEQUENCE_FEATURES
    same_ids = {"hist_video_id": "video_id"}  # noqa: RUF012

    def __init__(self, info: DatasetInfo, prepared: Prepared) -> None:
        super().__init__(info, prepared, DENSE_NAMES, FEATURES)

    @cached_property
    def joiner(self) -> Joiner:
        """The feature tables, memory-mapped."""
        return Joiner(*(open_columns(self.prepared.folder / role) for role in (USERS, VIDEOS)))

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        label: str = "is_click",
        history: int = 0,
        sequences: Sequence[str] = SEQUENCE_FEATURES,
        **order: Any,
    ) -> Loader:
        """A loader over `split`.

        Args:
            label: one of `kuairand_batches.LABELS`: is_click, long_view, is_like, …
            history: the user's newest events before a sample, at most so many; 0, the default: none. Those of a
                held-out sample may lie in the training split: they are earlier.
            sequences: which of `sequence_features` tell the history.
            order: shuffle, seed, drop_last, limit; see Loader.

        Raises:
            UserError: an unknown split, label or option, a number out of range.
        """
        check_order(order, "batches", ("label", "history", "sequences"))
        collate = RankCollator(self.joiner, Events(self.prepared.folder), Reading(label, history, tuple(sequences)))
        return Loader(
            self.table, self._mapped(collate), self.rows(split), batch_size, data=self.info.fingerprint, **order
        )

    def sequences(self, options: SequenceOptions | None = None) -> SequenceData:
        """Users' histories as samples of their own; see `nestlab.data.sequences`.

        Raises:
            UserError: nothing is left of what the options ask for.
        """
        place, seen = (self.table.column(name).to_numpy() for name in ("place", "seen"))
        events = Events(self.prepared.folder)
        return SequenceData(self.info, events, place[seen == 0], options or SequenceOptions())

    def feature_columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """As Dataset's: joined from the feature tables."""
        columns = self.joiner.columns(rows)
        return {name: columns[name] for name in self.features}

    def describe(self, sample: int) -> dict[str, pd.DataFrame]:
        """As Dataset's, with `files` for `inputs`, and `time`, `plays`, `labels`, `tabs`, `words` beside."""
        rows = self.table.slice(0, sample)
        return {
            "dataset": self._overview(rows, "is_click"),
            **kuairand_describe.tables(rows, self.joiner.columns(rows), self.manifest),
            **kuairand_describe.inputs(self.manifest, self.info.files),
        }


def _open_real(variant: Variant, source: Source, request: Request) -> Dataset:
    look = survey(variant, request.root)
    if request.file:
        look = _in_place_of_the_log(look, request.file)
    if not look.has_log:
        raise UserError(
            f"{source.name}: no {source.places} under '{request.root}'; {source.remedy}; "
            f"or use {source.twin or 'kuairand-synth'}, which is made on demand"
        )
    return _open(source.name, source.kind, look, request)


def _in_place_of_the_log(look: Survey, file: Path) -> Survey:
    beside = survey(look.variant, file.parent)
    tables = look if look.paths(USERS, VIDEOS) else beside
    return Survey(look.variant, {**tables.found, STANDARD: [file], RANDOM: []}, {**tables.missing, STANDARD: []})


def _open(name: str, kind: str, look: Survey, request: Request) -> Dataset:
    options = _options(request.options)
    logs = look.paths(*ROLES[options.logs])
    if not logs:
        raise UserError(_no_such_log(name, look, options.logs))
    prepared = prepare_kuairand(name, look, request.prepared, request.rows, options, request.progress)
    # One file of the twin among them, and what is learnt is not learnt from real data alone.
    if kind == "real" and any(is_twin(path) for path in (*logs, *look.paths(USERS, VIDEOS))):
        kind = "synthetic"
    return KuaiRand(_info(name, kind, look, prepared), prepared)


def _no_such_log(name: str, look: Survey, logs: str) -> str:
    missing, there = ", ".join(look.variant.files[logs]), look.paths(STANDARD, RANDOM)[0].name
    other = RANDOM if logs == STANDARD else STANDARD
    return f"{name}: no {logs} log there (missing: {missing}), only {there}; choose logs={other}"


def _options(given: PrepareOptions) -> KuaiRandOptions:
    return given if isinstance(given, KuaiRandOptions) else KuaiRandOptions(**asdict(given))


def _info(name: str, kind: str, look: Survey, prepared: Prepared) -> DatasetInfo:
    manifest = prepared.manifest
    read = [entry["name"] for entry in manifest["inputs"]]
    everything = look.paths(*look.variant.files)
    files = {
        "found": read,
        "unused": [path.name for path in everything if path.name not in read],
        "missing": look.absent(*look.variant.files),
    }
    return DatasetInfo(
        id=name,
        kind=kind,
        rows=manifest["rows_out"],
        fingerprint=prepared.fingerprint,
        title=_title(name, kind, look, manifest),
        counts={key: manifest[key] for key in _COUNTS},
        convention=CONVENTION,
        files=files,
    )


def _title(name: str, kind: str, look: Survey, manifest: dict[str, Any]) -> str:
    """E.g. `KuaiRand-Pure (real, 229,329 of 1,436,609 rows; without log_random_4_22_to_5_08_pure.csv)`."""
    rows, variant = f"{manifest['rows_out']:,}", look.variant
    if kind == "synthetic":
        return f"{name} (SYNTHETIC, {rows} rows)"
    published = sum(variant.rows[role] for role in ROLES[manifest["options"]["logs"]])
    of_all = f"{rows} of {published:,} rows" if manifest["rows_in"] < published else f"{rows} rows"
    # The statistic file is never read, so that its absence changes nothing.
    absent = look.absent(STANDARD, RANDOM, USERS, VIDEOS)
    return f"{variant.folder} ({kind}, {of_all}{'; without ' + ', '.join(absent) if absent else ''})"


def _open_twin(shape: Shape, source: Source, request: Request) -> Dataset:
    if request.file:
        real = f"kuairand-{shape.variant.key}"
        raise UserError(f"{source.name} is made, not read: leave out file={request.file}, or name {real}")
    twin = kuairand_synth.twin_files(request.rows or TWIN_ROWS, request.seed, request.progress, shape)
    look = survey(shape.variant, twin.cached(request.prepared))
    return _open(source.name, source.kind, look, replace(request, rows=None))


def _write_twin(shape: Shape, out: Path, rows: int, seed: int, progress: Callable[[str], None]) -> list[Path]:
    return kuairand_synth.twin_files(rows, seed, progress, shape).publish(out / shape.variant.folder / "data")


def _found(variant: Variant, root: Path) -> list[Path]:
    look = survey(variant, root)
    return look.paths(STANDARD, RANDOM, USERS, VIDEOS, STATISTIC) if look.has_log else []


def _without(variant: Variant, root: Path) -> list[str]:
    return survey(variant, root).absent(*variant.files)


def register_all() -> None:
    for variant in (PURE, K1, K27):
        register(
            Source(
                name=f"kuairand-{variant.key}",
                kind="real",
                places=f"{variant.folder}/data/log_standard_…_{variant.key}.csv (or that folder itself)",
                remedy=f"run `nestlab data fetch kuairand-{variant.key}`, or unpack {variant.folder}.tar.gz (Zenodo "
                "record 10439422) there",
                find=partial(_found, variant),
                open=partial(_open_real, variant),
                without=partial(_without, variant),
                twin=next((shape.name for shape in SHAPES if shape.variant is variant), ""),
                histories=True,
            )
        )
    for shape in SHAPES:
        register(
            Source(
                name=shape.name,
                kind="synthetic",
                places="",
                remedy=f"the synthetic twin of {shape.variant.folder}, reproducible by rows and seed",
                find=lambda root: [],
                open=partial(_open_twin, shape),
                write=partial(_write_twin, shape),
                histories=True,
            )
        )
    register_family("kuairand", ("kuairand-pure", "kuairand-1k", "kuairand-27k", "kuairand-synth"))
