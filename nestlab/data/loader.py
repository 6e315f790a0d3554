"""Batches from a memory-mapped Arrow table: rows sliced or gathered, then laid out feature-major, column by column."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from nestlab.batch import Batch
from nestlab.data.collate import Collate, Collator, array_of, deal, dense_log1p, jagged_columns
from nestlab.data.gathering import Gatherer
from nestlab.data.window_shuffle import Windows
from nestlab.errors import UserError

__all__ = [
    "Collate",
    "Collator",
    "Loader",
    "Position",
    "array_of",
    "check_order",
    "dense_log1p",
    "jagged_columns",
]

SHUFFLES = ("full", "window")
ORDER = ("shuffle", "seed", "drop_last", "limit")  # the options of a Loader that others hand on


@dataclass(frozen=True)
class Position:
    """A place in the sequence of batches: `batch` batches of epoch `epoch` lie before it, and all earlier epochs."""

    epoch: int = 0
    batch: int = 0

    def after(self, batches: int, of: int) -> Position:
        """So many batches further, where an epoch has `of` of them. The end of an epoch is the start of the next."""
        epochs, batch = divmod(self.batch + batches, of)
        return Position(self.epoch + epochs, batch)


@dataclass
class _Place:
    """How far one iteration is: the batches that it handed over since `begin`."""

    begin: Position
    done: int = 0

    def position(self, count: int) -> Position:
        return self.begin.after(self.done, count) if count else Position(self.begin.epoch + 1)


def check_order(order: Mapping[str, object], call: str, own: tuple[str, ...] = ()) -> None:
    """Of options that `call`, which has those of `own`, hands on to a Loader.

    Raises:
        UserError: one is none of ORDER.
    """
    if unknown := [name for name in order if name not in ORDER]:
        near = get_close_matches(unknown[0], (*own, *ORDER), 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join((*own, *ORDER))}"
        raise UserError(f"{call}: no option '{unknown[0]}'; {hint}")


class Loader:
    """Batches over rows `start` … `stop`−1 of a table; may be iterated again and again, `len()` is in batches.

    In order, or shuffled, all rows (`full`) or within windows of consecutive ones (`window`, see `Windows`): then every
    iteration is an epoch with an order of its own, drawn from (seed, epoch) by a generator of the loader's own. The
    same seed gives the same sequence of orders in every process; no global generator is read or moved. `start` is where
    the next iteration begins; `state_dict` tells where the running one is.

    Many ranks read one sequence of *global* batches, which does not depend on how many they are: see `slice`.

    A fully shuffled epoch holds 8 bytes a row for its permutation.
    """

    def __init__(
        self,
        table: pa.Table,
        collate: Collate,
        rows: tuple[int, int],
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        limit: int | None = None,
        data: str = "",
    ) -> None:
        """
        Args:
            batch_size: samples of a global batch.
            shuffle: `full` or True, `window`, or False: in order.
            limit: at most so many batches.
            data: the fingerprint of the data, for `state_dict`; "": not known.

        Raises:
            UserError: batch_size below 1, a negative limit or seed, an unknown shuffle.
        """
        if shuffle not in (True, False, *SHUFFLES):
            raise UserError(f"shuffle={shuffle}: choose {' or '.join(SHUFFLES)}, or False")
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: choose 1 or more")
        if limit is not None and limit < 0:
            raise UserError(f"limit={limit}: choose 0 or more batches, or None for all")
        if seed < 0:
            raise UserError(f"seed={seed}: choose 0 or more")
        self._table, self._collate = table, collate
        self._first, self._stop = rows
        self.batch_size, self.shuffle, self.seed, self.data = batch_size, shuffle, seed, data
        self.start, self._running = Position(), None
        self._rank, self._world_size = 0, 1
        count = self.samples // batch_size if drop_last else -(-self.samples // batch_size)
        self._count = count if limit is None else min(count, limit)

    @property
    def samples(self) -> int:
        """How many rows the split holds (whatever `limit` and `drop_last` leave out), over all ranks."""
        return self._stop - self._first

    @property
    def epoch(self) -> int:
        """The number of the next iteration."""
        return self.start.epoch

    def slice(self, rank: int, world_size: int) -> Loader:
        """What rank `rank` of `world_size` reads: of a global batch of B samples r·B//W … (r+1)·B//W − 1.

        Every rank yields as many batches as there are global ones; a slice may be empty. Only its own rows are read.

        Raises:
            ValueError: there is no such rank, or this is a slice already.
        """
        if not 0 <= rank < world_size or self._world_size > 1:
            raise ValueError(f"Loader.slice: rank {rank} of {world_size}, of a loader of {self._world_size} rank(s)")
        part = copy.copy(self)
        part._rank, part._world_size = rank, world_size
        part._running = None
        return part

    def samples_of(self, batch: int) -> int:
        """How many samples global batch `batch` of an epoch has, over all ranks."""
        return min(self.batch_size, self.samples - batch * self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch `epoch`, from its first batch on.

        Raises:
            UserError: a negative epoch.
        """
        self.begin_at(Position(epoch))

    def begin_at(self, position: Position) -> None:
        """The next iteration is what is left of an epoch at `position`: what a resumed run calls. Nothing that lies
        before it is read.

        Raises:
            UserError: a negative epoch, or a batch that the epoch does not have.
        """
        if position.epoch < 0:
            raise UserError(f"epoch={position.epoch}: choose 0 or more")
        if not 0 <= position.batch <= self._count:
            raise UserError(f"batch={position.batch}: an epoch of these data has {self._count}; choose one of them")
        self.start = position.after(0, self._count) if self._count else Position(position.epoch)
        self._running = None

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        begin, self.start = self.start, Position(self.start.epoch + 1)
        self._running = _Place(begin)
        return self._counted(self._running)

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that the newest iteration handed over, also in its middle; before the first,
        where that begins. And what the place is of: see `setting`. It is JSON.

        What reads ahead of the training takes batches before they are trained, as `nestlab.pipeline` does: then only
        the trainer knows the place. See `Position.after` and `begin_at`.
        """
        at = self._running.position(self._count) if self._running else self.start
        return {"epoch": at.epoch, "batch": at.batch, "of": self.setting()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration begins where `state_dict` was taken. A state without `of`, of an earlier version, is
        believed.

        Raises:
            UserError: it is the state of another setting, or an epoch of these data has no such batch.
        """
        if missing := {"epoch", "batch"} - state.keys():
            raise UserError(
                f"state: not a loader's, it lacks {' and '.join(sorted(missing))}; load what state_dict gave"
            )
        said = state.get("of", {})
        for name, value in self.setting().items():
            if name in said and said[name] != value:
                raise UserError(f"state: of {name}={said[name]}, this loader has {value}; load it into one of the same")
        self.begin_at(Position(state["epoch"], state["batch"]))

    def setting(self) -> dict[str, Any]:
        """All that decides which rows lie behind a place, as JSON: `batches` are those of an epoch, so that `drop_last`
        and `limit` are in it. Ranks are not: a place is one in the global batches.
        """
        shuffle = "full" if self.shuffle is True else self.shuffle
        return {
            "data": self.data,
            "rows": [self._first, self._stop],
            "batch_size": self.batch_size,
            "batches": self._count,
            "shuffle": shuffle,
            "seed": self.seed if shuffle else None,
        }

    def _counted(self, place: _Place) -> Iterator[Batch]:
        for batch in self._from(place.begin):
            place.done += 1
            yield batch

    def _from(self, begin: Position) -> Iterator[Batch]:
        if self.shuffle == "window":
            return self._in_windows(begin)
        return self._shuffled(begin) if self.shuffle else self._ordered(begin)

    def _in_windows(self, begin: Position) -> Iterator[Batch]:
        windows = Windows(self._table, self._first, self._stop, self.batch_size, self.seed, begin.epoch)
        for rows, parts in windows.parts(begin.batch, self._count, self._rows_of):
            yield from deal(self._collate, rows, parts)

    def _ordered(self, begin: Position) -> Iterator[Batch]:
        for batch in range(begin.batch, self._count):
            start, stop = self._rows_of(batch)
            yield self._collate(self._table.slice(self._first + start, stop - start))

    def _shuffled(self, begin: Position) -> Iterator[Batch]:
        order = np.random.default_rng([self.seed, begin.epoch]).permutation(self.samples)
        gathered = Gatherer(self._table)
        for batch in range(begin.batch, self._count):
            start, stop = self._rows_of(batch)
            yield self._collate(gathered(order[start:stop] + self._first))

    def _rows_of(self, batch: int) -> tuple[int, int]:
        """This rank's places in the order of the epoch: the first, and the one after the last."""
        size, start = self.samples_of(batch), batch * self.batch_size
        rank, world = self._rank, self._world_size
        return start + rank * size // world, start + (rank + 1) * size // world
