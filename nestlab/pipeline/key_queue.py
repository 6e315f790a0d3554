"""Batches that are read, and whose keys are known, before their turn to be loaded: for policies that look ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nestlab.batch import Batch
from nestlab.exchange import RoutedBatch


@dataclass
class KeyQueue:
    """`length` batches ahead of LOAD, whatever the pipeline's depth is; 0 reads nothing ahead.

    LOAD(t) reads on to batch t + length and takes batch t; ROUTE(t) routes what LOAD(t) has read, each batch once, and
    takes the keys of batch t. So the keys of t + length are known when t is planned, and no later ones are used then:
    a decision does not depend on how far ahead it is made. The two stages share nothing but what LOAD hands on.

    What is held here belongs to no batch in flight: a drain leaves it, and it comes first when training goes on.
    """

    length: int = 0
    read_bytes: int = 0  # of samples held
    key_bytes: int = 0  # of keys held
    _read: deque[Batch] = field(default_factory=deque)  # LOAD's
    _routed: deque[RoutedBatch] = field(default_factory=deque)  # ROUTE's
    _ended: Iterator[Batch] | None = None  # a source that has no more; it is not asked again while batches are held

    def read(self, source: Iterator[Batch]) -> tuple[Batch, list[Batch], bool]:
        """The next batch, those read just now (it may be among them), and whether the source was found at its end.

        Raises:
            StopIteration: no batch is held and the source has no more.
        """
        new: list[Batch] = []
        ended = False
        while len(self._read) <= self.length and (self._ended is not source or not self._read):
            try:
                new.append(next(source))
            except StopIteration:
                if not self._read:
                    raise
                self._ended, ended = source, True
            else:
                self._ended = None
                self._read.append(new[-1])
        taken = self._read.popleft()
        self.read_bytes += sum(batch.nbytes for batch in new) - taken.nbytes
        return taken, new, ended

    def route(self, new: list[Batch], route: Callable[[Batch], RoutedBatch]) -> tuple[RoutedBatch, list[RoutedBatch]]:
        """The keys of the next batch, and those of the batches read with it."""
        found = [route(batch) for batch in new]
        self._routed.extend(found)
        taken = self._routed.popleft()
        self.key_bytes += sum(each.nbytes for each in found) - taken.nbytes
        return taken, found

    def held(self, source: Iterator[Batch] | None) -> tuple[list[RoutedBatch], bool]:
        """The keys known of batches to come, and whether they are the last of `source`."""
        return list(self._routed), bool(self._routed) and self._ended is source

    def drop_absent(self) -> None:
        """After a drain, where all that was read is routed: what no rank has a batch for, at the end of a source."""
        while self._routed and not self._routed[-1].present:
            self.read_bytes -= self._read.pop().nbytes
            self.key_bytes -= self._routed.pop().nbytes

    def clear(self) -> None:
        """At the end of the data, where only fillers are held."""
        self._read.clear()
        self._routed.clear()
        self.read_bytes = self.key_bytes = 0
