"""Users' histories as training samples: windows of consecutive events, what comes next at every position, negatives.

A sample is one window of one user's events in the order of time; nothing is padded. Three parts: `train`, `validation`
and `heldout`. With split `time` the parts are before the first border, between both, and after the second, for all
users alike; with `leave_one_out` a user's last event is held out, and the one before it is for validation.

The features of a batch: `item` (the input events), `target` (the event after each), `action` (bits of
`kuairand_format.ACTIONS` of the input events), `time` (their time_ms) and `negative` (K items a sample). Its `weights`
are the numbers of positions, so that the weighted mean over samples is the mean over positions; its `labels` are the
samples' numbers in their part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from nestlab.data.dataset import DatasetInfo
from nestlab.data.loader import Loader
from nestlab.data.sequence_batches import SequenceCollator, SequenceLoader
from nestlab.data.sequence_windows import all_windows, at_shares, every_event, kept_events, newest_windows
from nestlab.errors import UserError

PARTS = ("train", "validation", "heldout")
SPLITS = ("time", "leave_one_out")
WINDOWS = ("newest", "all")
HELDOUT = ("first", "all")
NEGATIVES = ("uniform", "popularity")
MOST_SAMPLES = 1 << 24  # a label is a float32
_CHUNK = 1 << 24  # events that are looked at together, where all of them would cost memory


@dataclass(frozen=True)
class SequenceOptions:
    """What a sample is, and which events there are. All of it is part of the protocol.

    Attributes:
        history: input events of a window, at most; the newest are kept.
        split: `time` or `leave_one_out`.
        borders: shares of the log's rows that lie before the two borders of the split `time`.
        windows: of a user in training: the `newest`, or `all`, cut from the end.
        heldout: what a user is tested on: the `first` event of a part, or `all` its events, each a sample of its own
            with everything before it as history. An event without any before it is no sample.
        positive: an action that an event must have (is_click, long_view, …); empty: every event counts.
        copies: whether an event counts whose user had the same video in the same millisecond before. The logs have some
            hundredths of such copies, and whoever repeats the last item predicts them.
        least_user, least_item: events that a user, or an item, must have; dropped until all have. Counted over all
            parts, as the published protocols do.
        negatives: K.
        negatives_by: `uniform` over all items, or by `popularity` in the training part.
        seed: of negatives.
    """

    history: int = 200
    split: str = "time"
    borders: tuple[float, float] = (0.8, 0.9)
    windows: str = "newest"
    heldout: str = "first"
    positive: str = ""
    copies: bool = False
    least_user: int = 2
    least_item: int = 1
    negatives: int = 128
    negatives_by: str = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("history", 1), ("least_user", 2), ("least_item", 1), ("negatives", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"sequences: {name}={getattr(self, name)}: choose {least} or more")
        choices = (("split", SPLITS), ("windows", WINDOWS), ("heldout", HELDOUT), ("negatives_by", NEGATIVES))
        for name, values in choices:
            if getattr(self, name) not in values:
                raise UserError(f"sequences: {name}={getattr(self, name)}: choose one of {', '.join(values)}")
        if not 0 < self.borders[0] < self.borders[1] < 1:
            raise UserError(f"sequences: borders={self.borders}: give two shares, 0 < first < second < 1")

    @property
    def protocol(self) -> str:
        """In words: results under different ones never compare."""
        events = f"events with {self.positive}" if self.positive else "all events"
        events += "" if self.copies else " but copies"
        split = f"time {self.borders[0]:g}/{self.borders[1]:g}" if self.split == "time" else "leave one out"
        split += ", every later event" if self.heldout == "all" else ""
        return (
            f"next item; {events}; users of {self.least_user}, items of {self.least_item} or more; {split}; "
            f"history {self.history}, {self.windows} windows; {self.negatives} {self.negatives_by} negatives, seed "
            f"{self.seed}"
        )


class SequenceData:
    """Windows of a prepared data set.

    Attributes:
        info: of the data set; the protocol is in its `convention`, what was left out in its `counts`.
        options: as they were given.
        items: [I] int64, ascending: every item of an event that counts, in whatever part; all may be recommended.
    """

    def __init__(
        self, info: DatasetInfo, events: Mapping[str, np.ndarray], user_starts: np.ndarray, options: SequenceOptions
    ) -> None:
        """
        Args:
            events: video_id, time_ms and action of user after user, each in the order of time.
            user_starts: [U] int64, where each user's events begin.

        Raises:
            UserError: no event is left, or nothing to train on.
        """
        self.options, self._events = options, events
        self._users = kept_events(events, user_starts, options)
        if not self._users.count:
            raise UserError(f"sequences: '{info.id}' has no user of {options.least_user} such events; ask for fewer")
        borders = at_shares(events["time_ms"], options.borders) if options.split == "time" else None
        self._parts = {part: self._samples(part, borders) for part in PARTS}
        if not self._parts["train"].num_rows:
            raise UserError(f"sequences: no user of '{info.id}' has two events to train on; take more rows")
        self.items = np.unique(self._of_kept("video_id", slice(None)))
        samples = {f"samples_{part}": table.num_rows for part, table in self._parts.items()}
        counts = {"events": self._users.events, "users": self._users.count, "items": len(self.items), **samples}
        self.info = replace(info, counts={**info.counts, **counts}, convention=f"{info.convention}; {options.protocol}")

    def batches(
        self,
        part: str,
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        limit: int | None = None,
    ) -> Loader:
        """A loader over the samples of a part, of `train` in the order of their ends; see Loader.

        Negatives hang on (seed of the options, epoch, number of the sample): not on ranks, order or batches.
        """
        table = self._part(part)
        order = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last, "limit": limit}
        order["data"] = self.info.fingerprint
        return SequenceLoader(table, self._collator, (0, table.num_rows), batch_size, **order)

    def samples(self, part: str) -> int:
        return self._part(part).num_rows

    def targets(self, part: str) -> np.ndarray:
        """[n] int64: the item after the last input event of each sample."""
        return self._of_kept("video_id", self._column(part, "end"))

    def seen(self, part: str, samples: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Items [sum of lengths] and lengths [n]: all of a sample's user's events before its target, however many."""
        first, end = self._column(part, "first"), self._column(part, "end")
        if samples is not None:
            first, end = first[samples], end[samples]
        return self._of_kept("video_id", _ranges(first, end)), end - first

    def popularity(self) -> np.ndarray:
        """[I] int64: how many events of the training part each item has."""
        counts = np.zeros(len(self.items), np.int64)
        starts, lengths = self._users.starts, self._training_lengths
        for some in _groups(lengths):
            items = self._of_kept("video_id", _ranges(starts[some], starts[some] + lengths[some]))
            counts += np.bincount(np.searchsorted(self.items, items), minlength=len(counts))
        return counts

    @cached_property
    def _collator(self) -> SequenceCollator:
        popularity = self.popularity() if self.options.negatives_by == "popularity" else None
        return SequenceCollator(self._events, self._users.kept, self.items, self.options, popularity)

    def _samples(self, part: str, borders: tuple[int, int] | None) -> pa.Table:
        """Columns sample, first (of the user's events), end (of the inputs; the last target stands there), length."""
        users, history = self._users, self.options.history
        before, until = self._bounds(part, borders)
        if part == "train":
            self._training_lengths = until - users.starts
            cut = newest_windows if self.options.windows == "newest" else all_windows
            first, end, length = cut(users.starts, until, history)
            by_time = np.argsort(self._of_kept("time_ms", end), kind="stable")
            first, end, length = first[by_time], end[by_time], length[by_time]
        else:
            first, end = every_event(users.starts, before, until, self.options.heldout == "first")
            length = np.minimum(end - first, history)
        if len(end) > MOST_SAMPLES:
            raise UserError(f"sequences: {len(end):,} samples in {part}; at most {MOST_SAMPLES:,}; use fewer rows")
        columns = {"sample": np.arange(len(end)), "first": first, "end": end, "length": length}
        return pa.table({name: pa.array(values.astype(np.int64)) for name, values in columns.items()})

    def _bounds(self, part: str, borders: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """Where a part begins and ends among each user's events, [U] int64 each."""
        users, number = self._users, PARTS.index(part)
        if borders is None:
            ends = [np.maximum(users.ends - 2, users.starts), np.maximum(users.ends - 1, users.starts), users.ends]
        else:
            ends = [users.first_from(partial(self._of_kept, "time_ms"), border) for border in borders] + [users.ends]
        return (users.starts, *ends)[number], ends[number]

    def _of_kept(self, name: str, where) -> np.ndarray:
        column, kept = self._events[name], self._users.kept
        return np.asarray(column[where if kept is None else kept[where]])

    def _part(self, part: str) -> pa.Table:
        if part not in PARTS:
            raise UserError(f"sequences: part '{part}': choose one of {', '.join(PARTS)}")
        return self._parts[part]

    def _column(self, part: str, name: str) -> np.ndarray:
        return self._part(part).column(name).to_numpy()


def _ranges(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """first[0] … end[0] − 1, first[1] … : end to end."""
    lengths = end - first
    ends = np.cumsum(lengths)
    return np.repeat(end - ends, lengths) + np.arange(ends[-1] if len(ends) else 0)


def _groups(lengths: np.ndarray) -> Iterator[slice]:
    """Neighbouring users of about _CHUNK events together."""
    number = np.cumsum(lengths) // _CHUNK
    borders = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(lengths)]
    return (slice(first, stop) for first, stop in pairwise(borders))
