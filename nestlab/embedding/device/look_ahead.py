"""The oracle's queue of keys: which batch uses a key next, as far as the next L batches tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.embedding.keyset import KeySet

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Foresight:
    """What is known of later batches when a batch is planned; batches count from this one, which is 0.

    Attributes:
        distances: [U] int64: the next batch that uses a key of this batch, 1 … L; 0 for none within L.
        entering: batches new in the queue since the last plan: (which, rows [n] int64 of those of its keys that no
            earlier batch of the queue uses, −1 for a key that has no row yet).
        anew: what was known before is void: the batches that were foreseen do not come.
    """

    distances: np.ndarray
    entering: tuple[tuple[int, np.ndarray], ...] = ()
    anew: bool = False


class LookAhead:
    """A queue of the keys of the next `length` batches, in batch order.

    What it says of a batch depends on the stream of keys and on `length` alone: batches beyond the window wait in the
    queue unread, and a batch whose window is not complete is refused. Memory: the keys of the window and of what waits.

    With `strict=False` a batch may come that was not foreseen: it has an empty window, or, if it is further back in the
    queue, what was foreseen before it is void, as after a training that was broken off.

    `foresee` and `end` may be called on another thread than `advance` as long as every batch comes as foreseen.
    """

    def __init__(self, length: int, strict: bool = True) -> None:
        if length < 1:
            raise ValueError(f"look-ahead: {length} batches; it needs at least 1")
        self.length, self._strict = length, strict
        self._waiting: deque[KeySet | None] = deque()  # None: the end of a stream
        self._window: deque[KeySet] = deque()  # from the batch to be planned next
        self._ended = False  # the window ends with its stream
        self._first = 0  # number of the batch to be planned next
        self._uses = _Uses()

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and of what is kept about them."""
        keys = sum(k.ids.nbytes for k in [*self._window, *list(self._waiting)] if k is not None)
        return keys + self._uses.nbytes

    def foresee(self, keys: KeySet) -> None:
        """The keys of the next batch of the stream."""
        self._waiting.append(keys)

    def end(self) -> None:
        """The stream ends here: the window does not wait for more. Batches foreseen later are a new stream's."""
        self._waiting.append(None)

    def advance(self, keys: KeySet, find: Callable[[KeySet], np.ndarray]) -> Foresight:
        """What is known when `keys`, the next batch, is planned; `find` gives the rows [n] of keys, −1 for none.

        Raises:
            RuntimeError: strict, and the batch is another one than was foreseen, or the next L are not all foreseen and
                the stream has not ended.
        """
        entering = list(self._complete())
        anew = False
        if not (self._window and _same(self._window[0], keys)):
            anew = bool(self._window)
            entering = self._begin_anew(keys)
        distances = self._uses.leave(self._window.popleft())
        rows = tuple((number - self._first, find(fresh)) for number, fresh in entering if number > self._first)
        self._first += 1
        return Foresight(distances, rows, anew)

    def _complete(self) -> Iterator[tuple[int, KeySet]]:
        """Takes what the window lacks from the queue: the numbers of the batches that enter, and their new keys."""
        if self._ended and not self._window:
            self._ended = False
        while len(self._window) <= self.length and not self._ended:
            if not self._waiting:
                if not (self._strict or self._window):
                    return
                raise RuntimeError(
                    f"look-ahead: batch {self._first} is to be planned with {max(len(self._window) - 1, 0)} of "
                    f"{self.length} later batches foreseen; foresee more, or call end()"
                )
            keys = self._waiting.popleft()
            if keys is None:
                self._ended = bool(self._window)
                continue
            self._window.append(keys)
            number = self._first + len(self._window) - 1
            yield number, self._uses.enter(keys, number)

    def _begin_anew(self, keys: KeySet) -> list[tuple[int, KeySet]]:
        """The queue from `keys` on, or of `keys` alone where it does not hold them."""
        if self._strict:
            raise RuntimeError(f"look-ahead: batch {self._first} is not the one that was foreseen")
        queue = [*self._window, *([None] if self._ended else []), *self._waiting]
        at = next((i for i, known in enumerate(queue) if known is not None and _same(known, keys)), None)
        self._waiting = deque([keys, None] if at is None else queue[at:])
        self._window.clear()
        self._ended, self._uses = False, _Uses(self._first)
        return list(self._complete())


def _same(one: KeySet, other: KeySet) -> bool:
    return one is other or (np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets))


class _Uses:
    """The next use of every use of a key in the window. A use is a number that grows over all batches.

    The window is a ring of uses: `_next[use]` is the batch of the key's next use, 0 for none so far.
    """

    def __init__(self, batch: int = 0) -> None:
        self._index = KeyIndex()
        self._numbers = Rows(1 << 31, 0)
        self._latest = np.empty(0, dtype=np.int64)  # by the key's number: its latest use
        self._next = np.zeros(1024, dtype=np.int64)
        self._begin, self._end = 0, 0
        self._batch = batch  # number of the batch whose uses begin at _begin

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._latest.nbytes + self._next.nbytes + self._numbers.free.nbytes

    def enter(self, keys: KeySet, number: int) -> KeySet:
        """Appends a batch; returns those of its keys that the window did not hold."""
        self._make_room(len(keys))
        numbers, fresh = self._index.find_or_insert(keys, self._numbers)
        if self._numbers.ever > self._latest.size:
            grown = np.empty(2 * self._numbers.ever, dtype=np.int64)
            grown[: self._latest.size] = self._latest
            self._latest = grown
        uses = np.arange(self._end, self._end + len(keys))
        mask = self._next.size - 1
        known = np.ones(len(keys), dtype=bool)
        known[fresh] = False
        self._next[self._latest[numbers[known]] & mask] = number
        self._next[uses & mask] = 0
        self._latest[numbers] = uses
        self._end += len(keys)
        return keys.take(fresh)

    def leave(self, keys: KeySet) -> np.ndarray:
        """Takes the oldest batch out; how far ahead [U] its keys are used next, 0 for not at all."""
        uses = np.arange(self._begin, self._begin + len(keys))
        following = self._next[uses & (self._next.size - 1)]
        gone = keys.take(np.flatnonzero(following == 0))
        self._numbers.give_back(self._index.remove(gone))
        self._begin += len(keys)
        self._batch += 1
        return np.where(following > 0, following - (self._batch - 1), 0)

    def _make_room(self, count: int) -> None:
        needed = self._end - self._begin + count
        if needed > self._next.size:
            uses = np.arange(self._begin, self._end)
            grown = np.zeros(1 << (2 * needed - 1).bit_length(), dtype=np.int64)
            grown[uses & (grown.size - 1)] = self._next[uses & (self._next.size - 1)]
            self._next = grown


def ahead(batches: Iterable[T], length: int, foresee: Callable[[T], None], end: Callable[[], None]) -> Iterator[T]:
    """The batches, each only after the `length` batches behind it were shown to `foresee`: how a queue is fed."""
    kept: deque[T] = deque()
    for batch in batches:
        foresee(batch)
        kept.append(batch)
        if len(kept) > length:
            yield kept.popleft()
    end()
    yield from kept
