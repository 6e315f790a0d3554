"""Admission: which unknown keys get a row now. One object a group, asked once a training batch, in batch order.

A key that is refused has no row, no record and no state: it reads the constant default row, and only what is counted
of it here changes. An admitted key leaves the waiting room, so that after an eviction it starts from nothing again
(but see `SketchAdmission`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from nestlab.embedding.config import TableConfig
from nestlab.embedding.features.rules import FeatureRules
from nestlab.embedding.features.sketch import SketchAdmission
from nestlab.embedding.features.waiting import WaitingRoom, merge_keyed, select_keyed
from nestlab.embedding.keyset import KeySet

Owned = Callable[[np.ndarray, int], np.ndarray]  # (ids [n], table number) -> mask [n]: what belongs to this shard
State = dict[str, np.ndarray]


class Admission(Protocol):
    """What decides on unknown keys."""

    def admit(self, keys: KeySet) -> np.ndarray:
        """[n] bool: which of these keys, none of which has a row, get one now. Counts this batch first."""
        ...

    def forget(self, keys: KeySet) -> None:
        """What is known of these keys is dropped: they got a row without being asked for (a checkpoint, an import)."""
        ...

    def end_round(self) -> None:
        """Every `evict_every` batches, after the batch's admission: what decays, decays."""
        ...

    def state(self) -> State:
        """Everything counted so far, in an order that does not depend on the history (ids ascending per table)."""
        ...

    def load_state(self, state: State) -> None:
        """In place of what was counted so far.

        Raises:
            UserError: the state is of other rules.
        """
        ...

    @staticmethod
    def merge(states: Sequence[State]) -> State:
        """The states of shards, which own disjoint keys, as one."""
        ...

    @staticmethod
    def select(state: State, owned: Owned) -> State:
        """The part of a state that a shard needs which owns these keys."""
        ...

    @property
    def nbytes(self) -> int: ...


class _Exact:
    """A number for every key that ever came and was never admitted; admitted is whose number reaches the threshold."""

    def __init__(self, rules: FeatureRules, tables: Sequence[TableConfig], field: str, dtype: type) -> None:
        self._rules, self._thresholds, self._field = rules, rules.thresholds(tables), field
        self._room = WaitingRoom(dtype, len(tables))

    def _gain(self, keys: KeySet) -> np.ndarray:
        raise NotImplementedError

    def admit(self, keys: KeySet) -> np.ndarray:
        totals = self._room.values(keys) + self._gain(keys)
        admitted = totals >= np.repeat(self._thresholds, np.diff(keys.offsets))
        self._room.remove(keys.take(np.flatnonzero(admitted)))
        refused = np.flatnonzero(~admitted)
        self._room.put(keys.take(refused), totals[refused])
        return admitted

    def forget(self, keys: KeySet) -> None:
        self._room.remove(keys)

    def end_round(self) -> None:
        """Nothing decays."""

    def state(self) -> State:
        return self._room.state(self._field)

    def load_state(self, state: State) -> None:
        self._room.load_state(state, self._field)

    merge = staticmethod(merge_keyed)
    select = staticmethod(select_keyed)

    @property
    def nbytes(self) -> int:
        return self._room.nbytes


class CountAdmission(_Exact):
    """A key is admitted in the batch in which its occurrences, this batch's included, reach the threshold.

    A threshold of 1 or less admits at once. State: `counts` [n] int64.
    """

    def __init__(self, rules: FeatureRules, tables: Sequence[TableConfig]) -> None:
        super().__init__(rules, tables, "counts", np.int64)

    def _gain(self, keys: KeySet) -> np.ndarray:
        return keys.counts


class ShowClickAdmission(_Exact):
    """A key is admitted in the batch in which its score reaches the threshold. State: `scores` [n] float64.

    The score is the sum of show_weight·shows + click_weight·clicks over its batches. It decays as the score of eviction
    does (the sources give admission no decay of its own): times `decay` at the end of each round of `evict_every`
    batches, after the batch of that number was counted, whether anything is evicted or not.
    """

    def __init__(self, rules: FeatureRules, tables: Sequence[TableConfig]) -> None:
        super().__init__(rules, tables, "scores", np.float64)

    def _gain(self, keys: KeySet) -> np.ndarray:
        return self._rules.show_weight * keys.counts + self._rules.click_weight * keys.clicks

    def end_round(self) -> None:
        self._room.scale(self._rules.decay)


_KINDS = {"count": CountAdmission, "sketch": SketchAdmission, "show_click": ShowClickAdmission}


def admission(rules: FeatureRules, tables: Sequence[TableConfig]) -> Admission | None:
    """What `rules.admit` names, for one group's tables; None where every id gets a row at once."""
    return None if rules.admit == "none" else _KINDS[rules.admit](rules, tables)
