"""The reading side of a reordering: ids → rows, feature by feature, for every id there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from nestlab.batch import Batch
from nestlab.data.dataset import DatasetInfo
from nestlab.data.loader import Collate
from nestlab.data.planted import hash64
from nestlab.data.prepare import MANIFEST, Prepared, read_prepared
from nestlab.embedding import kernels
from nestlab.errors import UserError

_SPARE_STREAM = 0x5BA2E  # of the hash into the spare rows; another value would be another map


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Rows of one feature: ids that the data hold have a row each, all others share the spare rows behind them.

    Attributes:
        ids: [known] int64: the id of row 0, 1, ….
        spare: how many rows an unknown id may fall into, by a fixed hash.
    """

    ids: np.ndarray
    spare: int

    @property
    def known(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> int:
        """The largest row number + 1: what a table for this feature needs."""
        return self.known + self.spare

    @cached_property
    def _slots(self) -> np.ndarray:
        """The key index of the known ids: they are put in by row, and rows are given out in that order."""
        slots = np.zeros(2 << max(6, (2 * self.known).bit_length()), np.int64)
        rows, fresh = np.empty(self.known, np.int64), np.empty(self.known, np.int64)
        progress = np.array([0, 0, 0, self.known])
        nothing, given = np.zeros(0, np.int64), np.zeros(2, np.int64)
        kernels.find_or_insert(slots, self.ids, np.array([0, self.known]), rows, fresh, nothing, given, progress)
        if progress[1] != self.known:
            raise ValueError(f"FeatureMap: {self.known} rows for {progress[1]} distinct ids")
        return slots

    def __call__(self, ids_n: np.ndarray) -> np.ndarray:
        """[n] int64: the row of each id [n] int64, which may be any."""
        rows = np.empty(len(ids_n), np.int64)
        kernels.find(self._slots, np.ascontiguousarray(ids_n, np.int64), np.array([0, len(ids_n)]), rows)
        unknown = np.flatnonzero(rows < 0)
        if len(unknown):
            # The upper half of a good hash, by multiplication and shift (Lemire 2019); spare is below 2^31.
            high = hash64(_SPARE_STREAM, ids_n[unknown]) >> np.uint64(32)
            rows[unknown] = self.known + ((high * np.uint64(self.spare)) >> np.uint64(32)).astype(np.int64)
        return rows


class IdMap:
    """The maps of a reordering, by feature.

    Attributes:
        folder: where it lies, None for one in memory.
        manifest: how it was made; `source` is the fingerprint of the data that it belongs to.
        features: its maps by feature, as they stand in the manifest.
        shared: features that hold ids of another one, and go by its map.
    """

    def __init__(self, manifest: dict[str, Any], features: dict[str, FeatureMap], folder: Path | None = None) -> None:
        self.manifest, self.features, self.folder = manifest, features, folder
        self.shared: dict[str, str] = manifest.get("shared", {})
        for feature in features.values():
            feature(np.zeros(1, np.int64))  # builds the index, and compiles: no batch shall wait for it

    @property
    def rows(self) -> dict[str, int]:
        """For each feature the largest row number + 1."""
        return {name: feature.rows for name, feature in self.features.items()}

    def of(self, feature: str) -> FeatureMap | None:
        """The map that a feature's ids go by; None: they stay as they are."""
        return self.features.get(self.shared.get(feature, feature))

    def check(self, info: DatasetInfo) -> None:
        """Raises UserError unless this reordering was made from these data."""
        if self.manifest["source"] != info.fingerprint:
            raise UserError(
                f"{self.folder or 'reordering'}: made from other data ({self.manifest['source'][:16]}) than {info.id} "
                f"({info.fingerprint[:16]}); make it for these with `nestlab data reorder {info.id}`"
            )

    def apply(self, batch: Batch) -> Batch:
        """The batch with row numbers in place of the ids of the features that are mapped; host memory only."""
        ids = batch.ids.numpy().copy()
        ends = np.cumsum(batch.feature_lengths().sum(dim=1).numpy())
        for name, begin, end in zip(batch.features, [0, *ends[:-1]], ends, strict=True):
            if (feature := self.of(name)) is not None and end > begin:
                ids[begin:end] = feature(ids[begin:end])
        return replace(batch, ids=torch.from_numpy(ids))

    def after(self, collate: Collate) -> Collate:
        """`collate`, then `apply`."""
        return _Mapped(collate, self.apply)


@dataclass(frozen=True)
class _Mapped:
    collate: Collate
    apply: Callable[[Batch], Batch]

    def __call__(self, rows: pa.Table) -> Batch:
        return self.apply(self.collate(rows))


def open_map(folder: str | Path) -> IdMap:
    """A reordering from its folder.

    Raises:
        UserError: there is none, or a file of it is not what was written.
    """
    folder = Path(folder)
    try:
        fingerprint = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder}: no reordering there; make one with `nestlab data reorder NAME`") from None
    prepared = read_prepared(folder, fingerprint)
    if prepared is None:
        raise UserError(f"{folder}: a file of the reordering is damaged; remove the folder and make it again")
    return map_of(prepared)


def map_of(prepared: Prepared) -> IdMap:
    """The maps of a folder that is whole.

    Raises:
        UserError: it holds something else than a reordering.
    """
    manifest = prepared.manifest
    if "source" not in manifest or "features" not in manifest:
        raise UserError(f"{prepared.folder}: holds no reordering; name a folder that `nestlab data reorder` made")
    found = {}
    for entry in manifest["features"]:
        table = pq.read_table(prepared.folder / entry["file"])
        found[entry["feature"]] = FeatureMap(table.column("id").to_numpy(), entry["spare"])
    return IdMap(manifest, found, prepared.folder)
