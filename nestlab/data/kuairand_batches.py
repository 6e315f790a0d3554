"""Rows of KuaiRand's log → ranking batches: joined to user and video, with the user's last events before the sample.

The convention `kuairand-rank`: dense values are log(1 + max(x, 0)), missing ones 0; a duration of 0 is a missing one.
An id is the raw value, or the hash of a word (`kuairand_tables.word_id`); a missing value is an empty run. The hour
is Beijing's, from `time_ms`. The statistic file is no source: its figures cover the whole month, the future too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from nestlab.batch import Batch
from nestlab.data import histories
from nestlab.data.histories import Events
from nestlab.data.kuairand_format import ACTIONS, beijing_hour
from nestlab.data.kuairand_tables import ONEHOTS
from nestlab.data.loader import array_of, dense_log1p, jagged_columns
from nestlab.errors import UserError

LABELS = tuple(ACTIONS)
ALL_ACTIONS = "actions"  # as a label: the bit mask of ACTIONS, which a float32 holds exactly

OF_LOG = ("user_id", "video_id", "tab", "hour")
OF_VIDEO = ("author_id", "music_id", "music_type", "video_type", "upload_type", "tag")
OF_USER = (
    *("user_active_degree", "is_live_streamer", "is_video_author"),
    *("follow_user_num_range", "fans_user_num_range", "friend_user_num_range", "register_days_range"),
    *ONEHOTS,
)
FEATURES = (*OF_LOG, *OF_VIDEO, *OF_USER)
USER_COUNTS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
DENSE_NAMES = ("duration_s", *USER_COUNTS, "user_events")
SEQUENCE_FEATURES = ("hist_video_id", "hist_action", "hist_gap_ms")
VALUES = ("hist_gap_ms",)  # of them, those that look up no table


@dataclass(frozen=True)
class Reading:
    """What a batch is to hold.

    Attributes:
        label: one of LABELS, or ALL_ACTIONS.
        history: how many of the user's newest events before the sample a batch holds at most; 0: no sequences.
        sequences: which of SEQUENCE_FEATURES; a model takes those that it has tables for.
    """

    label: str = "is_click"
    history: int = 0
    sequences: tuple[str, ...] = SEQUENCE_FEATURES

    def __post_init__(self) -> None:
        if self.label not in (*LABELS, ALL_ACTIONS):
            raise UserError(f"label='{self.label}': choose one of {', '.join((*LABELS, ALL_ACTIONS))}")
        if self.history < 0:
            raise UserError(f"history={self.history}: choose 0 or more events")
        if unknown := set(self.sequences) - set(SEQUENCE_FEATURES):
            raise UserError(f"sequences {', '.join(sorted(unknown))}: choose from {', '.join(SEQUENCE_FEATURES)}")


@dataclass(frozen=True)
class Joiner:
    """Finds the features of a row's user and video; `users` and `videos` are memory-mapped, in one chunk."""

    users: pa.Table
    videos: pa.Table

    def columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Every dense column and sparse feature of `rows` [B], by name; raw values, missing ones null."""
        joined = {name: array_of(rows, name) for name in ("user_id", "video_id", "tab")}
        joined["hour"] = pa.array(beijing_hour(array_of(rows, "time_ms").to_numpy()))
        joined |= _take(self.users, (*OF_USER, *USER_COUNTS), array_of(rows, "user_position"))
        joined |= _take(self.videos, OF_VIDEO, array_of(rows, "video_position"))
        duration_ms = array_of(rows, "duration_ms").to_numpy()
        joined["duration_s"] = pa.array(duration_ms / 1000.0, mask=duration_ms <= 0)
        joined["user_events"] = array_of(rows, "seen")
        return joined


class RankCollator:
    """A table of rows of the log → a Batch of FEATURES and, with a history, SEQUENCE_FEATURES.

    A sequence feature of a sample is a run of at most `history` values, the newest last: `hist_video_id`,
    `hist_action` (the bits of `kuairand_format.ACTIONS`, 0: shown and left) and `hist_gap_ms` (from that event to the
    sample, 0 or more).
    """

    def __init__(self, joiner: Joiner, events: Events, reading: Reading) -> None:
        self._joiner, self._events, self._reading = joiner, events, reading
        self.features = FEATURES + (reading.sequences if reading.history else ())

    def __call__(self, rows: pa.Table) -> Batch:
        columns = self._joiner.columns(rows)
        ids, lengths = jagged_columns([columns[name] for name in FEATURES])
        if self._reading.history:
            sequences, lengths_b = self._sequences(rows)
            ids = np.concatenate([ids, *sequences])
            lengths = np.concatenate([lengths, *[lengths_b] * len(sequences)])
        return Batch(
            dense=torch.from_numpy(dense_log1p([columns[name] for name in DENSE_NAMES])),
            features=self.features,
            ids=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(self._labels(rows)),
            values=tuple(name for name in VALUES if name in self.features),
        )

    def _labels(self, rows: pa.Table) -> np.ndarray:
        """[B] float32."""
        if self._reading.label != ALL_ACTIONS:
            return array_of(rows, self._reading.label).to_numpy().astype(np.float32)
        taken = [array_of(rows, name).to_numpy().astype(np.int64) * bit for name, bit in ACTIONS.items()]
        return np.sum(taken, axis=0).astype(np.float32)

    def _sequences(self, rows: pa.Table) -> tuple[list[np.ndarray], np.ndarray]:
        """The values [n] int64 of each sequence feature, and the lengths [B] that they share."""
        place_b, seen_b = (array_of(rows, name).to_numpy() for name in ("place", "seen"))
        run = histories.last(*histories.earlier(self._events["time_ms"], place_b, seen_b), self._reading.history)
        time_b = array_of(rows, "time_ms").to_numpy()
        made = {
            "hist_video_id": lambda: self._events["video_id"][run.index],
            "hist_action": lambda: self._events["action"][run.index].astype(np.int64),
            "hist_gap_ms": lambda: np.repeat(time_b, run.lengths) - self._events["time_ms"][run.index],
        }
        return [made[name]() for name in self._reading.sequences], run.lengths


def _take(table: pa.Table, names: tuple[str, ...], position_b: pa.Array) -> dict[str, pa.Array]:
    """Columns at the positions [B]; null where the position is −1."""
    at = position_b.to_numpy()
    index = pa.array(at, mask=at < 0)
    return {name: table.column(name).chunk(0).take(index) for name in names}
