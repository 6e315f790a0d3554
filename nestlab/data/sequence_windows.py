"""Which events count, and where windows are cut: arrays over all users at once, no loop over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nestlab.data.kuairand_format import ACTIONS
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.data.sequences import SequenceOptions


@dataclass(frozen=True)
class Users:
    """Users with the events that count, numbered from 0 over all of them.

    Attributes:
        kept: [m] int64, ascending: the events' places among all; None: all are kept.
        starts, ends: [U] int64, of each user's events among those kept.
    """

    kept: np.ndarray | None
    starts: np.ndarray
    ends: np.ndarray

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def events(self) -> int:
        return int(self.ends[-1]) if self.count else 0

    def count_below(self, values: np.ndarray, border: int) -> np.ndarray:
        """[U] int64: how many values [m] of each user are below `border`; they ascend within a user."""
        below = np.concatenate(([0], np.cumsum(values < border)))
        return below[self.ends] - below[self.starts]


def kept_events(events: Mapping[str, np.ndarray], user_starts: np.ndarray, options: SequenceOptions) -> Users:
    """The events that `options` ask for: filtered by action once, by counts of items and users until all have enough.

    Raises:
        UserError: there is no such action.
    """
    n = len(events["video_id"])
    starts = np.sort(np.asarray(user_starts, np.int64))
    if not options.positive and options.least_item == 1 and (np.diff(np.append(starts, n)) >= options.least_user).all():
        return Users(None, starts, np.append(starts[1:], n) if n else starts)
    kept = np.arange(n) if not options.positive else np.flatnonzero(_having(events["action"], options.positive))
    user = np.searchsorted(starts, kept, side="right") - 1
    _, item = np.unique(np.asarray(events["video_id"])[kept], return_inverse=True)
    while True:
        enough = np.bincount(item)[item] >= options.least_item if len(item) else np.zeros(0, bool)
        enough &= np.bincount(user)[user] >= options.least_user if len(user) else enough
        if enough.all():
            break
        kept, user, item = kept[enough], user[enough], item[enough]
    firsts = np.flatnonzero(np.diff(user, prepend=-1))
    return Users(kept, firsts, np.append(firsts[1:], len(kept)) if len(firsts) else firsts)


def _having(actions: np.ndarray, name: str) -> np.ndarray:
    if name not in ACTIONS:
        raise UserError(f"sequences: positive={name}: choose one of {', '.join(ACTIONS)}, or none")
    return (np.asarray(actions) & ACTIONS[name]) > 0


def newest_windows(starts: np.ndarray, ends: np.ndarray, history: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """first, end and length [n] int64: one window a user of two events; its inputs end before the last event."""
    there = ends - starts >= 2
    first, end = starts[there], ends[there] - 1
    return first, end, np.minimum(end - first, history)


def all_windows(starts: np.ndarray, ends: np.ndarray, history: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `newest_windows`, and the windows before it: every event but a user's last is an input once."""
    first, end, _ = newest_windows(starts, ends, history)
    windows = -(-(end - first) // history)
    number = np.arange(int(windows.sum())) - np.repeat(np.cumsum(windows) - windows, windows)
    ends_n = np.repeat(end, windows) - number * history
    first_n = np.repeat(first, windows)
    return first_n, ends_n, np.minimum(ends_n - first_n, history)
