"""What all rows of the study train: consecutive global batches in memory, cut into the ranks' slices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from nestlab import data
from nestlab.batch import Batch
from nestlab.errors import UserError
from nestlab.experiments.nestpipe.settings import Settings

COLUMNS = 6  # those with most distinct ids: what would be sharded


@dataclass(frozen=True)
class Stream:
    """Batches of one rank, so that no loader's time is in a step's.

    Ids are numbered anew, 0 … n − 1 in each column, because torchrec's tables have a fixed size; which samples share an
    id stays as it is.

    Attributes:
        title: the data set's, which says SYNTHETIC where that is so.
        dense_names, features: the columns.
        rows: distinct ids of each feature over all ranks and batches.
        batches: this rank's slices of the global batches, in the order of time.
    """

    title: str
    dense_names: tuple[str, ...]
    features: tuple[str, ...]
    rows: dict[str, int]
    batches: tuple[Batch, ...]

    @property
    def tables_rows(self) -> int:
        return sum(self.rows.values())


def open_stream(settings: Settings, rank: int = 0) -> Stream:
    """`settings.batches` batches, or, where the rows do not give so many, those that there are, over and over.

    Raises:
        UserError: there is not one batch.
    """
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    world, size = settings.world_size, settings.batch_size * settings.world_size
    found = tuple(dataset.batches("train", size, drop_last=True, limit=settings.batches))
    if not found:
        raise UserError(
            f"nestpipe: {dataset.info.rows} rows are no batch of {settings.batch_size} samples on each of {world} "
            "rank(s); use more rows or fewer ranks"
        )
    features, batches = _largest(dataset.features, found)
    numbered, rows = _numbered(batches, features)
    own = [batch.slice(rank * size // world, (rank + 1) * size // world) for batch in numbered]
    repeated = tuple(own[i % len(own)] for i in range(settings.batches))
    return Stream(dataset.info.title, dataset.dense_names, features, rows, repeated)


def _largest(features: tuple[str, ...], batches: tuple[Batch, ...]) -> tuple[tuple[str, ...], list[Batch]]:
    """The columns with most distinct ids, in the data set's order, and the batches with these alone."""
    distinct = [len(np.unique(np.concatenate(parts))) for parts in zip(*map(runs, batches), strict=True)]
    chosen = sorted(np.argsort([-n for n in distinct], kind="stable")[:COLUMNS].tolist())
    return tuple(features[c] for c in chosen), [_with_columns(batch, chosen) for batch in batches]


def _with_columns(batch: Batch, columns: list[int]) -> Batch:
    ids, lengths = runs(batch), batch.feature_lengths().numpy()
    return replace(
        batch,
        features=tuple(batch.features[c] for c in columns),
        ids=torch.from_numpy(np.concatenate([ids[c] for c in columns])),
        lengths=torch.from_numpy(np.concatenate([lengths[c] for c in columns])),
    )


def _numbered(batches: list[Batch], features: tuple[str, ...]) -> tuple[list[Batch], dict[str, int]]:
    known = [np.unique(np.concatenate(parts)) for parts in zip(*map(runs, batches), strict=True)]
    renamed = []
    for batch in batches:
        ids = [np.searchsorted(ids, run) for ids, run in zip(known, runs(batch), strict=True)]
        renamed.append(replace(batch, ids=torch.from_numpy(np.concatenate(ids).astype(np.int64))))
    return renamed, dict(zip(features, map(len, known), strict=True))


def runs(batch: Batch) -> list[np.ndarray]:
    """[F] arrays [n] int64: the ids of each feature, repeats included."""
    ends = np.cumsum(batch.feature_lengths().sum(dim=1).numpy())[:-1]
    return np.split(batch.ids.numpy(), ends)


def come_back(batches: tuple[Batch, ...]) -> int:
    """Keys of this rank that are in batches t − 2 and t but not in t − 1, summed over t: what a copy between two
    buffers cannot repair."""
    keys = [[set(run.tolist()) for run in runs(batch)] for batch in batches]
    triples = zip(keys, keys[1:], keys[2:], strict=False)
    return sum(len((a & c) - b) for before in triples for a, b, c in zip(*before, strict=True))
