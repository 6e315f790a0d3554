"""Criteo under a published convention: categories by number, dense values as that convention has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch

from nestlab.batch import Batch
from nestlab.data.collate import array_of, dense_log1p
from nestlab.data.columns import open_columns
from nestlab.data.criteo_conventions import Convention, bins, convention, multi_hot
from nestlab.data.criteo_format import DENSE_NAMES, FEATURES
from nestlab.data.criteo_splits import Splits, days_of
from nestlab.data.criteo_vocabulary import FILES, Vocabulary, categories, features_of, integers, prepare_vocabularies
from nestlab.data.dataset import Dataset, DatasetInfo, open_table
from nestlab.data.loader import Loader
from nestlab.data.prepare import Prepared, PrepareOptions, Progress
from nestlab.errors import UserError


@dataclass(frozen=True)
class CriteoOptions(PrepareOptions):
    """How Criteo is prepared, and how it is read.

    Attributes:
        convention: one of `criteo_conventions.CONVENTIONS`; not part of the prepared rows, which serve them all.
        days: of the 1TB logs, which days, such as `0-2,5`; empty: all that are there.
    """

    convention: str = "dlrm-log1p"
    days: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        convention(self.convention)
        self.wanted_days()

    def wanted_days(self) -> list[int] | None:
        """The numbers of the days, None for all."""
        if not self.days:
            return None
        wanted = set()
        for part in self.days.split(","):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise UserError(f"days='{self.days}': write numbers and ranges, such as 0-2,5")
            wanted |= set(range(int(first), int(last or first) + 1))
        return sorted(wanted)


class Criteo(Dataset):
    """Criteo, prepared and open. A split may also be the name of an input file, `day_3`: the rows of that day."""

    @cached_property
    def days(self) -> dict[str, tuple[int, int]]:
        """See `days_of`."""
        return days_of(self.manifest["parts"])

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """As Dataset's, and each day."""
        return {**super().splits, **self.days}


class ConventionalCriteo(Criteo):
    """Read by a convention other than that of raw hashes."""

    def __init__(
        self, info: DatasetInfo, prepared: Prepared, made: Convention, own: Splits, progress: Progress
    ) -> None:
        super().__init__(info, prepared, () if made.dense == "bins" else DENSE_NAMES, features_of(made))
        self.made, self.own = made, own
        train, rows = self.rows("train")[1], open_table(prepared)
        self.vocabularies = prepare_vocabularies(prepared, rows, train, made, progress)

    @cached_property
    def table(self) -> pa.Table:
        """All rows, memory-mapped; where the convention asks for it, with the number of its input file by row."""
        table = open_table(self.prepared)
        if self.made.dense != "log_shift":
            return table
        return table.append_column("file", open_columns(self.vocabularies.folder / FILES).column("file"))

    @property
    def splits(self) -> dict[str, tuple[int, int]]:
        """As Criteo's, and the convention's own in place of those of the same name."""
        return {**super().splits, **self.own.rows}

    @property
    def sizes(self) -> dict[str, int]:
        cap, sizes = self.made.cap, self.vocabularies.manifest["sizes"]
        return {name: min(size, cap) if cap else size for name, size in sizes.items()}

    def batches(self, split: str, batch_size: int, **order: Any) -> Loader:
        """A loader over `split`; see Loader."""
        folder, rare = self.vocabularies.folder, (self.made.first_id or 0) - 1
        known = {name: Vocabulary(folder, name, max(rare, 0)) for name in self.features}
        collate = ConventionCollator(self.made, known, self.sizes, self.vocabularies.manifest["smallest"])
        return Loader(self.table, collate, self.rows(split), batch_size, data=self.info.fingerprint, **order)

    def reordered(self, id_map: object) -> Self:
        raise UserError(f"{self.info.id}: an order of ids is made of raw hashes; open it with convention=dlrm-log1p")


class ConventionCollator:
    """A table of rows → a Batch of the convention's ids and dense values. A missing category is a category."""

    def __init__(
        self, made: Convention, known: dict[str, Vocabulary], sizes: dict[str, int], smallest: Sequence[Sequence[int]]
    ) -> None:
        self._made, self._known, self._sizes = made, known, sizes
        self._smallest_fd = np.array(smallest, np.float64)

    def __call__(self, rows: pa.Table) -> Batch:
        ids = [self._ids(rows, name) for name in self._known]
        counts = [1] * len(ids)
        if self._made.lookups != (1,) * len(FEATURES):
            counts = list(self._made.lookups)
            ids = multi_hot(np.stack(ids, axis=1), counts, list(self._sizes.values()))
        lengths = np.repeat(counts, rows.num_rows).astype(np.int64)
        return Batch(
            dense=torch.from_numpy(self._dense(rows)),
            features=tuple(self._known),
            ids=torch.from_numpy(np.concatenate([each.reshape(-1) for each in ids])),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(array_of(rows, "label").to_numpy(zero_copy_only=False).astype(np.float32)),
        )

    def _ids(self, rows: pa.Table, name: str) -> np.ndarray:
        """[B] int64"""
        values = categories(array_of(rows, name))
        numbers = self._known[name](bins(values) if name in DENSE_NAMES else values)
        return numbers % self._made.cap if self._made.cap else numbers

    def _dense(self, rows: pa.Table) -> np.ndarray:
        """[B, D] float32"""
        if self._made.dense == "bins":
            return np.zeros((rows.num_rows, 0), np.float32)
        if self._made.dense == "log1p":
            return dense_log1p([array_of(rows, name) for name in DENSE_NAMES])
        values_bd = np.stack([integers(array_of(rows, name)) for name in DENSE_NAMES], axis=1)
        file_b = array_of(rows, "file").to_numpy()
        return np.log(values_bd - self._smallest_fd[file_b] + 2).astype(np.float32)
