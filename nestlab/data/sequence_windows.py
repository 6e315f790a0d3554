"""Which events count, and where windows are cut: arrays over all users at once, no loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nestlab.data.kuairand_format import ACTIONS
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.data.sequences import SequenceOptions


_CHUNK = 1 << 24  # events that are looked at together


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

    def first_from(self, values_at: Callable[[np.ndarray], np.ndarray], border: int) -> np.ndarray:
        """[U] int64: each user's first event with a value of `border` or more, else its end.

        Values ascend within a user. Found by halves, all users at once: no array of the events is made.
        """
        low, high = self.starts.copy(), self.ends.copy()
        while len(unknown := np.flatnonzero(low < high)):
            middle = (low[unknown] + high[unknown]) // 2
            below = values_at(middle) < border
            low[unknown[below]] = middle[below] + 1
            high[unknown[~below]] = middle[~below]
        return low


def kept_events(events: Mapping[str, np.ndarray], user_starts: np.ndarray, options: SequenceOptions) -> Users:
    """The events that `options` ask for: filtered by action once, by counts of items and users until all have enough.

    Raises:
        UserError: there is no such action.
    """
    n = len(events["video_id"])
    starts = np.sort(np.asarray(user_starts, np.int64))
    counts = _having(events["action"], options.positive) if options.positive else np.ones(n, bool)
    if not options.copies:
        counts &= ~_copies(events, starts, counts)
    enough_each = options.least_item == 1 and (np.diff(np.append(starts, n)) >= options.least_user).all()
    if enough_each and counts.all():
        return Users(None, starts, np.append(starts[1:], n) if n else starts)
    kept = np.flatnonzero(counts)
    # In int32: the largest log has hundreds of millions of events.
    user = np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(np.append(starts, n)))[kept]
    item = _numbered(np.asarray(events["video_id"][kept]))
    while True:
        enough = (np.bincount(item) >= options.least_item)[item] & (np.bincount(user) >= options.least_user)[user]
        if enough.all():
            break
        kept, user, item = kept[enough], user[enough], item[enough]
    firsts = np.flatnonzero(np.diff(user, prepend=-1))
    return Users(kept, firsts, np.append(firsts[1:], len(kept)) if len(firsts) else firsts)


def _copies(events: Mapping[str, np.ndarray], starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[n] bool: whether an event that `counts` is before this one, of its user, video and millisecond."""
    found = np.zeros(len(counts), bool)
    for first in range(0, len(counts), _CHUNK):
        at = np.arange(first, min(first + _CHUNK, len(counts)))
        begin = starts[np.searchsorted(starts, at, side="right") - 1]
        back = 1
        while len(at):
            near = at - back >= begin
            at, begin = at[near], begin[near]
            near = events["time_ms"][at - back] == events["time_ms"][at]
            at, begin = at[near], begin[near]
            found[at] |= (events["video_id"][at - back] == events["video_id"][at]) & counts[at - back]
            back += 1
    return found


def _numbered(values: np.ndarray) -> np.ndarray:
    """[n] int32: each value's place among the distinct ones."""
    distinct, number = np.unique(values), np.empty(len(values), np.int32)
    for first in range(0, len(values), _CHUNK):
        part = slice(first, first + _CHUNK)
        number[part] = np.searchsorted(distinct, values[part])
    return number


def at_shares(values: np.ndarray, shares: tuple[float, ...]) -> tuple[int, ...]:
    """For each share s of n int64 values, the one at place floor(s·n) of their order; `values` may be on disk.

    By counting: the values' range is cut into 2^16 pieces, and only the piece that holds the place is ordered.
    """
    lowest, highest = int(values.min()), int(values.max())
    shift = np.uint64(max(0, (highest - lowest).bit_length() - 16))

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, len(values), _CHUNK):
            part = np.asarray(values[first : first + _CHUNK])
            above = part.view(np.uint64) - np.array(lowest).view(np.uint64)  # modulo 2^64, so that nothing overflows
            yield part, (above >> shift).astype(np.int64)

    counts = sum(np.bincount(piece, minlength=1 << 16) for _, piece in pieces())
    ends = np.cumsum(counts)
    found = []
    for share in shares:
        place = min(int(share * len(values)), len(values) - 1)
        wanted = int(np.searchsorted(ends, place, side="right"))
        inside = np.concatenate([part[piece == wanted] for part, piece in pieces()])
        found.append(int(np.sort(inside)[place - int(ends[wanted] - counts[wanted])]))
    return tuple(found)


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


def every_event(
    starts: np.ndarray, before: np.ndarray, until: np.ndarray, first_alone: bool
) -> tuple[np.ndarray, np.ndarray]:
    """first and end [n] int64 of the histories before each user's events `before` … `until` − 1, or the first of them.

    An event that is its user's first has no history, and is left out.
    """
    begin = np.maximum(before, starts + 1)
    count = np.maximum((np.minimum(until, before + 1) if first_alone else until) - begin, 0)
    ends = np.cumsum(count)
    return np.repeat(starts, count), np.repeat(begin - ends + count, count) + np.arange(ends[-1] if len(ends) else 0)
