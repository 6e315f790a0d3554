"""Windows of users' events → batches, and negatives that hang on nothing but seed, epoch and sample."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from nestlab.batch import Batch
from nestlab.data.loader import Loader, Position
from nestlab.splitmix import GOLDEN, mixed

if TYPE_CHECKING:
    from nestlab.data.sequences import SequenceOptions

FEATURES = ("item", "target", "action", "time", "negative")


class SequenceCollator:
    """A table of samples → a Batch of FEATURES.

    Attributes:
        epoch: that negatives are drawn for.
    """

    def __init__(
        self,
        events: Mapping[str, np.ndarray],
        kept: np.ndarray | None,
        items: np.ndarray,
        options: SequenceOptions,
        popularity: np.ndarray | None = None,
    ) -> None:
        """
        Args:
            kept: [m] int64, places of the events that count; None: all.
            items: [I] int64, what negatives are drawn from, evenly.
            popularity: [I] int64: as often as this instead. Costs 4 bytes an event that it counts.
        """
        self._events, self._kept, self._items, self.options = events, kept, items, options
        # Each item as often as it counts: a number drawn evenly then finds it without a search.
        self._urn = None if popularity is None else np.repeat(np.arange(len(items), dtype=np.int32), popularity)
        self.epoch = 0

    def __call__(self, rows: pa.Table) -> Batch:
        sample, end, length = (rows.column(name).to_numpy() for name in ("sample", "end", "length"))
        ends = np.cumsum(length)
        inputs = np.repeat(end - ends, length) + np.arange(ends[-1] if len(ends) else 0)
        item, target = self._events_at("video_id", inputs), self._events_at("video_id", inputs + 1)
        action, time = self._events_at("action", inputs), self._events_at("time_ms", inputs)
        negative = self._negatives(sample)
        ids = np.concatenate([item, target, action.astype(np.int64), time, negative.ravel()])
        lengths = np.concatenate([*[length] * 4, np.full(len(sample), negative.shape[1])])
        return Batch(
            dense=torch.zeros(len(sample), 0),
            features=FEATURES,
            ids=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.astype(np.int64)),
            labels=torch.from_numpy(sample.astype(np.float32)),
            weights=torch.from_numpy(length.astype(np.float32)),
            values=("time",),
        )

    def _events_at(self, name: str, where: np.ndarray) -> np.ndarray:
        return np.asarray(self._events[name][where if self._kept is None else self._kept[where]])

    def _negatives(self, sample: np.ndarray) -> np.ndarray:
        """[B, K] int64."""
        count = self.options.negatives
        drawn = random_bits(self.options.seed, self.epoch, sample[:, None] * count + np.arange(count))
        place = (drawn % np.uint64(len(self._items if self._urn is None else self._urn))).astype(np.int64)
        return self._items[place if self._urn is None else self._urn[place]]


class SequenceLoader(Loader):
    """A loader whose batches know their epoch."""

    def setting(self) -> dict[str, Any]:
        options = asdict(self._collate.options)
        return {**super().setting(), "sequences": {**options, "borders": list(options["borders"])}}

    def _from(self, begin: Position) -> Iterator[Batch]:
        own = copy.copy(self)  # two iterations may be under way at once, each in an epoch of its own
        own._collate = copy.copy(self._collate)
        own._collate.epoch = begin.epoch
        return super(SequenceLoader, own)._from(begin)


def random_bits(seed: int, epoch: int, counter: np.ndarray) -> np.ndarray:
    """uint64 of the counter's shape: a hash of the three (SplitMix64's finaliser), so that nothing has an order."""
    key = mixed(np.array([seed, epoch], np.uint64) + GOLDEN)
    return mixed(mixed(counter.astype(np.uint64) + key[0]) + key[1])
