"""The data sets and the ids that are looked up: real logs, their synthetic twins, and ids drawn by a power law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab import data, paths
from nestlab.data import Dataset
from nestlab.data.loader import jagged_columns
from nestlab.data.planted import hash64
from nestlab.data.registry import resolve
from nestlab.data.skew import draw_ranks
from nestlab.errors import UserError
from nestlab.experiments.ecorec.settings import Settings

# The columns with the most ids; of each one id a sample, or none where it is missing.
COLUMNS = {"kuairand": ("video_id", "user_id"), "criteo": ("C3",)}
SKEW = 1.05  # of ids drawn by a power law: the k-th most frequent has weight k to the power of −SKEW
RANKED, HASHED, UNIFORM = "ranked", "hashed", "uniform"
KINDS = {
    RANKED: "skewed, most frequent first",
    HASHED: "same skew, scattered",
    UNIFORM: "all alike",
}


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a data set."""

    dataset: Dataset
    name: str

    @property
    def label(self) -> str:
        """Column and data set in a few words."""
        info = self.dataset.info
        source = info.title.split(" (")[0]
        return f"{self.name}, {source} ({'real' if info.kind == 'real' else 'SYNTHETIC'}, {info.rows:,} rows)"

    def ids(self, split: str) -> np.ndarray:
        """[n] int64, of a split in its order; missing ones left out."""
        first, stop = self.dataset.rows(split)
        columns = self.dataset.feature_columns(self.dataset.table.slice(first, stop - first))
        return jagged_columns([columns[self.name]])[0]


def opened(name: str, settings: Settings) -> Dataset:
    """A data set by name, with the rows that the scale gives to real ones or to twins.

    Raises:
        UserError: as `data.open_dataset`.
    """
    twin = resolve(name, paths.data_root(settings.data_root)).kind == "synthetic"
    return data.open_dataset(name, settings.data_root, rows=settings.twin_rows if twin else settings.rows)


def columns(settings: Settings) -> list[Column]:
    """Of every log under `data_root`, or its twin where there is none; of Criteo both: its real sample is small."""
    found: dict[str, Dataset] = {}
    for name in ("kuairand", "criteo", "criteo-synth"):
        dataset = opened(name, settings)
        found.setdefault(dataset.info.title, dataset)
    return [Column(d, name) for d in found.values() for name in COLUMNS[d.info.id.split("-")[0]]]


def drawn(kind: str, count: int, rows: int, seed: int) -> np.ndarray:
    """[count] int64 in [0, rows), SYNTHETIC: row numbers as one of `KINDS` has them.

    Raises:
        UserError: there is no such kind.
    """
    rng = np.random.default_rng(seed)
    if kind == UNIFORM:
        return rng.integers(0, rows, count)
    if kind not in KINDS:
        raise UserError(f"ids '{kind}': choose one of {', '.join(KINDS)}")
    ranked = draw_ranks(rng, count, rows, SKEW) - 1
    return ranked if kind == RANKED else scattered(ranked, rows)


def scattered(ids: np.ndarray, rows: int) -> np.ndarray:
    """[n] int64 in [0, rows): ids [n] by a hash; some share a row. `rows` is below 2^32."""
    high = hash64(0, ids) >> np.uint64(32)
    return (high * np.uint64(rows) >> np.uint64(32)).astype(np.int64)
