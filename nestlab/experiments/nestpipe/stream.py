"""What all rows of the study train: consecutive global batches in memory, cut into the ranks' slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from nestlab import data
from nestlab.batch import Batch
from nestlab.data import Dataset
from nestlab.data.sequences import SequenceOptions
from nestlab.errors import UserError
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.models.sequence.building import TABLES

COLUMNS = 6  # those with most distinct ids: what would be sharded
NEGATIVES = 32  # of a window


@dataclass(frozen=True)
class Stream:
    """Batches of one rank, so that no loader's time is in a step's.

    Ids are numbered anew, 0 … n − 1 in each table, because torchrec's tables have a fixed size; which samples share an
    id stays as it is.

    Attributes:
        title: the data set's, which says SYNTHETIC where that is so.
        model: what is trained, as the settings have it.
        longest: events of the longest window; 0: samples are rows.
        dense_names: the dense columns.
        tables: the features that look each table up, by table.
        rows: distinct ids of each table over all ranks and batches.
        batches: this rank's slices of the global batches, in the order of time.
    """

    title: str
    model: str
    longest: int
    dense_names: tuple[str, ...]
    tables: dict[str, tuple[str, ...]]
    rows: dict[str, int]
    batches: tuple[Batch, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Those that look up a table."""
        return tuple(feature for features in self.tables.values() for feature in features)

    @property
    def events(self) -> float:
        """Ids of a sample in the first feature, on average over this rank's batches: of a window its events."""
        place = self.batches[0].features.index(self.features[0])
        return float(torch.cat([batch.feature_lengths()[place] for batch in self.batches]).double().mean())


def open_stream(settings: Settings, rank: int = 0) -> Stream:
    """`settings.batches` batches, or, where the data do not give so many, those that there are, over and over.

    Raises:
        UserError: there is not one batch.
    """
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    return _of_sequences(dataset, settings, rank) if settings.sequential else _of_rows(dataset, settings, rank)


def _of_rows(dataset: Dataset, settings: Settings, rank: int) -> Stream:
    """Samples are rows of the data set, with the columns that have most distinct ids."""
    found = _found(dataset.batches, settings, f"{dataset.info.rows} rows")
    features, batches = _largest(dataset.features, found)
    tables = {name: (name,) for name in features}
    found = Stream(dataset.info.title, settings.model, 0, dataset.dense_names, tables, {}, tuple(batches))
    return _numbered(found, settings, rank)


def _of_sequences(dataset: Dataset, settings: Settings, rank: int) -> Stream:
    """Samples are windows of users' histories, in the order of their ends; the data set has histories."""
    options = SequenceOptions(history=settings.history, negatives=NEGATIVES, seed=settings.seed, windows="all")
    sequences = dataset.sequences(options)
    found = _found(sequences.batches, settings, f"the histories of {dataset.info.rows} rows")
    stream = Stream(dataset.info.title, settings.model, settings.history, (), TABLES, {}, found)
    return _numbered(stream, settings, rank)


def _found(batches: Callable[..., Iterable[Batch]], settings: Settings, what: str) -> tuple[Batch, ...]:
    size = settings.batch_size * settings.world_size
    found = tuple(batches("train", size, drop_last=True, limit=settings.batches))
    if not found:
        raise UserError(
            f"nestpipe: {what} are no batch of {settings.batch_size} samples on each of {settings.world_size} "
            "rank(s); use more rows or fewer ranks"
        )
    return found


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


def _numbered(stream: Stream, settings: Settings, rank: int) -> Stream:
    """The same with new numbers for ids, this rank's slices alone, as often over as it takes."""
    known = {table: _distinct(stream.batches, features) for table, features in stream.tables.items()}
    table_of = {feature: table for table, features in stream.tables.items() for feature in features}
    size, world = settings.batch_size * settings.world_size, settings.world_size
    own = []
    for batch in stream.batches:
        ids = [
            np.searchsorted(known[table_of[name]], run) if name in table_of else run
            for name, run in zip(batch.features, runs(batch), strict=True)
        ]
        renamed = replace(batch, ids=torch.from_numpy(np.concatenate(ids).astype(np.int64)))
        own.append(renamed.slice(rank * size // world, (rank + 1) * size // world))
    repeated = tuple(own[i % len(own)] for i in range(settings.batches))
    return replace(stream, rows={table: len(ids) for table, ids in known.items()}, batches=repeated)


def _distinct(batches: tuple[Batch, ...], features: tuple[str, ...]) -> np.ndarray:
    """[n] int64, ascending: all ids of these features."""
    found = (dict(zip(batch.features, runs(batch), strict=True)) for batch in batches)
    return np.unique(np.concatenate([by_name[feature] for by_name in found for feature in features]))


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
