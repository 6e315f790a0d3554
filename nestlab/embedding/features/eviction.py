"""Eviction: which rows are given up. One object a group, asked after a training batch, in batch order.

A row that this or the previous batch used is never given up: its batch may still be in flight (hazard 1 of
docs/design.md 4.2). What becomes of a victim's row, slot and pending write-backs is the host tier's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nestlab.embedding.config import TableConfig
from nestlab.embedding.features.feature_kernels import add_rows, close_round
from nestlab.embedding.features.rules import FeatureRules
from nestlab.embedding.host.arena import zeros
from nestlab.embedding.keyset import KeySet

_FIELDS = ("shows", "clicks", "scores")


class ScannedIndex(Protocol):
    """What eviction asks of an index: one scan over all of it."""

    def rows_in_use(self, bound: int) -> np.ndarray: ...
    def flagged(self, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...


class RowStats:
    """Shows and clicks since the last round, and the score, of every row; memory is committed as rows are used.

    Attributes:
        array: [capacity, 3] float64: shows, clicks, score.
    """

    def __init__(self, capacity: int) -> None:
        self.array = zeros(3 * capacity, np.float64).reshape(capacity, 3)

    def add(self, rows: np.ndarray, keys: KeySet) -> None:
        """A batch used rows [U] of its keys; −1 (refused) are passed by."""
        add_rows(self.array, rows, keys.counts, keys.clicks)

    def clear(self, rows: np.ndarray) -> None:
        """These rows start anew."""
        self.array[rows] = 0.0

    def state(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`shows`, `clicks`, `scores`, each [n] float64, in the order of `rows` [n]."""
        return {name: self.array[rows, column] for column, name in enumerate(_FIELDS)}

    def load_state(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> None:
        """Puts what `state` gave to rows [n], in their order."""
        for column, name in enumerate(_FIELDS):
            self.array[rows, column] = state[name]

    @staticmethod
    def nbytes(rows: int) -> int:
        """Bytes committed when `rows` rows were ever given out."""
        return 24 * rows


class Eviction:
    """By age or by score, a round every `evict_every` batches.

    Attributes:
        stats: what scores are made of; None under `age`, which needs `last_seen` alone.
    """

    def __init__(self, rules: FeatureRules, tables: Sequence[TableConfig], capacity: int) -> None:
        """
        Args:
            capacity: the most rows there can be.
        """
        self._rules, self._ages = rules, rules.ages(tables)
        self.stats = RowStats(capacity) if rules.evict == "score" else None

    def used(self, rows: np.ndarray, keys: KeySet) -> None:
        """A training batch used rows [U] of its keys (−1 where refused): before the round that its number closes."""
        if self.stats is not None:
            self.stats.add(rows, keys)

    def due(self, number: int) -> bool:
        """Whether a round closes after training batch `number`, which counts from 1."""
        return number > 0 and number % self._rules.evict_every == 0

    def victims(self, index: ScannedIndex, last_seen: np.ndarray, number: int) -> tuple[KeySet, np.ndarray]:
        """Closes a round: the keys to give up, by (table, id), and their rows [n]. To be called once a round.

        Args:
            index: where the keys and rows in use are found.
            last_seen: [rows ever given out] int32, the number of the last training batch that used each row.
            number: of the training batch just counted.
        """
        idle = last_seen < number - 1
        if self.stats is None:
            ids, tables, rows = self._aged(index, last_seen, idle, number)
        else:
            ids, tables, rows = self._lowest(index, self.stats.array[: last_seen.size], idle)
            self.stats.clear(rows)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(tables, minlength=self._ages.size))))
        return KeySet(ids, offsets), rows

    def _aged(self, index: ScannedIndex, last_seen: np.ndarray, idle: np.ndarray, number: int):
        ids, tables, rows = index.flagged(idle & (last_seen < number - int(self._ages.min())))
        old = number - last_seen[rows].astype(np.int64) > self._ages[tables]
        return ids[old], tables[old], rows[old]

    def _lowest(self, index: ScannedIndex, stats: np.ndarray, idle: np.ndarray):
        """The lowest evict_share of the rows in use; of equal scores the smaller id first, then the smaller table."""
        rules = self._rules
        close_round(stats, float(rules.show_weight), float(rules.click_weight), float(rules.decay))
        in_use, scores = index.rows_in_use(idle.size), stats[:, 2]
        candidates = in_use & idle
        count = min(int(rules.evict_share * np.count_nonzero(in_use)), np.count_nonzero(candidates))
        if not count:
            return index.flagged(np.zeros(0, dtype=bool))
        highest = np.partition(scores[candidates], count - 1)[count - 1]
        ids, tables, rows = index.flagged(candidates & (scores <= highest))
        order = np.lexsort((tables, ids, scores[rows]))[:count]
        order.sort()
        return ids[order], tables[order], rows[order]


def eviction(rules: FeatureRules, tables: Sequence[TableConfig], capacity: int) -> Eviction | None:
    """What `rules.evict` names, for one group's tables and at most `capacity` rows; None where rows stay for good."""
    return None if rules.evict == "none" else Eviction(rules, tables, capacity)
