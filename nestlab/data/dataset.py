"""A prepared data set, open: what it is, and its batches."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from nestlab.data import statistics
from nestlab.data.columns import open_columns
from nestlab.data.loader import Collate, Collator, Loader, array_of
from nestlab.data.prepare import Prepared
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.data.reorder_map import IdMap
    from nestlab.data.sequences import SequenceData, SequenceOptions

# Rows a chunk of the Arrow copy, at most. Gathering scattered rows costs time for every chunk: with the library's own
# 1,000, shuffled reading of two million rows takes twenty times as long.
CHUNK_ROWS = 1 << 20


@dataclass(frozen=True)
class DatasetInfo:
    """What a run's manifest and every title say about the data.

    Attributes:
        id: the name of the data set, e.g. criteo-1tb.
        kind: `real` or `synthetic`.
        rows: rows that can be trained on.
        fingerprint: sha256 (hex) over the inputs' contents, the options and the schema version.
        title: for tables and plots; says SYNTHETIC where that is so.
        counts: rows_in, rows_out, rows_rejected and what else a format counts.
        convention: how raw values become inputs; results under different conventions do not compare.
            `dlrm-log1p`: dense log(1 + max(x, 0)), missing 0; a categorical id is the raw hash, missing an empty run.
            `kuairand-rank`: see `kuairand_batches`. The named ones of Criteo: see `criteo_conventions`.
        files: names of raw files: `found` (and read), `unused` (found, not read), `missing`. Empty where the format
            has no fixed set of files.
    """

    id: str
    kind: str
    rows: int
    fingerprint: str
    title: str
    counts: dict[str, int] = field(default_factory=dict)
    convention: str = "dlrm-log1p"
    files: dict[str, list[str]] = field(default_factory=dict)


class Dataset:
    """Rows in the order of time. The first 80 % are `train`, the last 20 % `heldout`.

    Attributes:
        id_map: the reordering that batches are read by; None: ids as they are.
        same_ids: features beside `features` that hold ids of one of these, as sequences do.
        sizes: where the data set's convention numbers the ids of a feature from 0 on: how many numbers there are.
    """

    id_map: IdMap | None = None
    same_ids: dict[str, str] = {}  # noqa: RUF012
    sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, info: DatasetInfo, prepared: Prepared, dense_names: tuple[str, ...], features: tuple[str, ...]
    ) -> None:
        self.info, self.prepared = info, prepared
        self.dense_names, self.features = dense_names, features

    @property
    def manifest(self) -> dict[str, Any]:
        return self.prepared.manifest

    @cached_property
    def table(self) -> pa.Table:
        """All rows, memory-mapped; opened at first use."""
        return open_table(self.prepared)

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """By name: the first row, and the one after the last. A data set may have more than these."""
        border = self.info.rows * 8 // 10
        return {"train": (0, border), "heldout": (border, self.info.rows), "all": (0, self.info.rows)}

    def rows(self, split: str) -> tuple[int, int]:
        """The first row of a split and the one after its last.

        Raises:
            UserError: there is no such split.
        """
        splits = self.splits
        if split not in splits:
            raise UserError(f"split '{split}': choose one of {', '.join(splits)}")
        return splits[split]

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        limit: int | None = None,
    ) -> Loader:
        """A loader over `split`; see Loader. `limit`: at most so many batches."""
        return Loader(
            self.table,
            self._mapped(Collator(self.dense_names, self.features)),
            self.rows(split),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            limit=limit,
            data=self.info.fingerprint,
        )

    def sequences(self, options: SequenceOptions | None = None) -> SequenceData:
        """Users' histories as samples of their own, of data that have users.

        Raises:
            UserError: these have none.
        """
        raise UserError(f"sequences: '{self.info.id}' has no histories of users; take a KuaiRand data set")

    def reordered(self, id_map: IdMap) -> Self:
        """The same data, read with row numbers in place of the ids that `id_map` maps; see `nestlab.data.reorder`.

        Raises:
            UserError: it was made from other data.
        """
        id_map.check(self.info)
        other = copy.copy(self)
        other.id_map = id_map
        return other

    def feature_columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Every sparse feature of rows of `table`, raw, by name: int64 or lists of them, missing ones null."""
        return {name: array_of(rows, name) for name in self.features}

    def _mapped(self, collate: Collate) -> Collate:
        return collate if self.id_map is None else self.id_map.after(collate)

    def describe(self, sample: int) -> dict[str, pd.DataFrame]:
        """Statistics by table: `dataset` (one row), `dense`, `categorical`, `inputs`, `rejected`.

        Column statistics are over the first `sample` rows at most.
        """
        table = self.table.slice(0, sample)
        return {
            "dataset": self._overview(table, "label"),
            "dense": pd.DataFrame([statistics.dense(name, table.column(name)) for name in self.dense_names]),
            "categorical": pd.DataFrame([statistics.categorical(name, table.column(name)) for name in self.features]),
            "inputs": pd.DataFrame(self.manifest["inputs"]),
            "rejected": statistics.frame(self.manifest["rejected"], "reason", "rows"),
        }

    def _overview(self, table: pa.Table, label: str) -> pd.DataFrame:
        row = {
            "title": self.info.title,
            "id": self.info.id,
            "kind": self.info.kind,
            **self.info.counts,
            "described_rows": table.num_rows,
            "click_rate": pc.mean(table.column(label)).as_py(),
            "convention": self.info.convention,
            "fingerprint": self.info.fingerprint,
        }
        return pd.DataFrame([row])


def open_table(prepared: Prepared) -> pa.Table:
    """The prepared rows, memory-mapped: raw columns as they lie there, Parquet through Hugging Face `datasets`.

    Its Arrow copy lies in the prepared folder; a copy that is damaged is made again.

    Raises:
        UserError: the copy cannot be written or read.
    """
    rows = prepared.manifest["rows_out"]
    if prepared.manifest.get("layout") == "columns":
        return open_columns(prepared.folder / "log")
    try:
        table = _load(prepared)
        if table.num_rows == rows:
            return table
    except (OSError, ValueError, pa.ArrowException):
        pass
    shutil.rmtree(prepared.folder / "arrow", ignore_errors=True)
    try:
        table = _load(prepared)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{prepared.folder}: cannot be opened ({why}); remove the folder and try again") from error
    if table.num_rows != rows:
        raise UserError(f"{prepared.folder}: {table.num_rows} rows instead of {rows}; remove the folder and try again")
    return table


def _load(prepared: Prepared) -> pa.Table:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # its progress bars are off anyway
        import datasets  # the Hugging Face package; imported late because it takes a second

    with _no_progress_bars(datasets), _no_monitor():
        opened = datasets.Dataset.from_parquet(
            [str(part) for part in prepared.parts],
            cache_dir=str(prepared.folder / "arrow"),
            keep_in_memory=False,
            writer_batch_size=CHUNK_ROWS,
        )
    return opened.data.table


@contextmanager
def _no_progress_bars(datasets: Any) -> Iterator[None]:
    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()


@contextmanager
def _no_monitor() -> Iterator[None]:
    """A progress bar, even one that is off, would start a thread that lives as long as the process."""
    from tqdm import tqdm

    interval, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = interval
