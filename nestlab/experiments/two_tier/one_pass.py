"""One pass over the rows in the order of time, and the rows that follow: what every training of the study sees."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from nestlab import data
from nestlab.batch import Batch
from nestlab.errors import UserError
from nestlab.experiments.two_tier.settings import Settings


@dataclass(frozen=True)
class Stream:
    """Batches in memory, so that no loader's time is in a step's.

    Attributes:
        title: the data set's, which says SYNTHETIC where that is so.
        dense_names, features: the columns.
        train: the first batches, in order.
        heldout: the batches right after them, a quarter as many (the split of the data sets, 80 to 20, nearer in time).
    """

    title: str
    dense_names: tuple[str, ...]
    features: tuple[str, ...]
    train: tuple[Batch, ...]
    heldout: tuple[Batch, ...]


def open_stream(settings: Settings) -> Stream:
    """`settings.steps` training batches, or as many as four fifths of the rows give.

    Raises:
        UserError: there are not two batches.
    """
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    loader = dataset.batches("all", settings.batch_size)
    steps = min(settings.steps, len(loader) * 4 // 5)
    if steps < 1:
        raise UserError(
            f"two_tier: {dataset.info.rows} rows are no two batches of {settings.batch_size}; use more rows"
        )
    heldout = max(1, steps // 4)
    batches = tuple(dataset.batches("all", settings.batch_size, limit=steps + heldout))
    return Stream(dataset.info.title, dataset.dense_names, dataset.features, batches[:steps], batches[steps:])


def ids_by_feature(batch: Batch) -> list[np.ndarray]:
    """[F] arrays [n] int64: the ids of each feature, repeats included."""
    ends = np.cumsum(batch.feature_lengths().sum(dim=1).numpy())[:-1]
    return np.split(batch.ids.numpy(), ends)


def distinct_ids(batches: tuple[Batch, ...]) -> list[np.ndarray]:
    """[F] arrays [n] int64, ascending: the distinct ids of each feature."""
    parts = zip(*map(ids_by_feature, batches), strict=True)
    return [np.unique(np.concatenate(list(part))) for part in parts]


def largest_batch(stream: Stream) -> int:
    """Unique keys, over all columns, of the training batch that has most."""
    return max(sum(map(len, distinct_ids((batch,)))) for batch in stream.train)


def smallest_cache(stream: Stream) -> int:
    """Slots that two batches need: the largest union of a training batch's keys and those of the one before."""
    pairs = zip(stream.train, (*stream.train[1:], stream.train[-1]), strict=True)
    return max(sum(map(len, distinct_ids(pair))) for pair in pairs)


def slots_on(device: str, share: float, stream: Stream) -> float:
    """`cache_slots` of a cache of a share of the rows: the share itself, or where a cache cannot grow a number.

    An accelerator's slots are as many from the start: the share of the distinct rows of the stream, and no fewer than
    two batches need, the first after the last among them.
    """
    if torch.device(device).type == "cpu":
        return share
    wanted = math.ceil(share * sum(map(len, distinct_ids(stream.train))))
    around = sum(map(len, distinct_ids((stream.train[-1], stream.train[0]))))
    return max(wanted, smallest_cache(stream), around)


def rounds(settings: Settings, most: int = 3, least: int = 1) -> Iterator[int]:
    """Numbers of repetitions 0, 1, …: at least `least`, then as long as another one fits into `settings.seconds`."""
    started = time.perf_counter()
    for number in range(most):
        yield number
        spent = time.perf_counter() - started
        if number + 1 >= least and spent * (number + 2) / (number + 1) > settings.seconds:
            return
