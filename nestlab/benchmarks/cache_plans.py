"""Planning: key → row, row → slot, victims. Data only, no record moves."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from nestlab.benchmarks.timing import rate
from nestlab.embedding import KeySet
from nestlab.embedding.device.look_ahead import LookAhead
from nestlab.embedding.device.slot_map import POLICIES, SlotMap
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex

_REPORTED = "clock"  # the policy of the summary


@dataclass(frozen=True)
class Scale:
    """`keys` a call, `hits` of them resident, over `slots`; the table has `distinct` keys.

    `look_ahead` is the oracle's: its own speed does not depend on it, but what is made ready before does.
    """

    slots: int = 1_000_000
    keys: int = 50_000
    distinct: int = 4_000_000
    hits: float = 0.9
    repeats: int = 40
    look_ahead: int = 20


def measure(scale: Scale) -> tuple[list[dict], dict]:
    """A row a policy and part of the work; `plan_mkeys_s` is the clock's, look-up included."""
    index, ids = _index(scale)
    rows = []
    for policy in POLICIES:
        taken = _Planner(policy, index, ids, scale).measure()
        for work, seconds in taken.items():
            rows.append({"work": work, "policy": policy, "threads": 1, **rate(seconds, scale.keys)})
    whole = next(row for row in rows if (row["policy"], row["work"]) == (_REPORTED, "look-up and plan"))
    figures = {"plan_mkeys_s": whole["mkeys_s"], "plan_mkeys_per_cpu_s": whole["per_cpu_s"]}
    return rows, {**figures, "plan_policy": _REPORTED}


def _index(scale: Scale) -> tuple[KeyIndex, np.ndarray]:
    """The index of a table, and the id of each row."""
    ids = np.random.default_rng(7).permutation(scale.distinct) * np.int64(-7046029254386353131)
    index = KeyIndex(scale.distinct)
    index.find_or_insert(KeySet(ids, [0, ids.size]), Rows(scale.distinct, 4))
    return index, ids


class _Planner:
    """One policy's slots, full, and calls of which so many keys hit."""

    def __init__(self, policy: str, index: KeyIndex, ids: np.ndarray, scale: Scale) -> None:
        self._index, self._ids, self._scale = index, ids, scale
        self._rng = np.random.default_rng(1)
        self._map = SlotMap(scale.slots, policy, scale.look_ahead, row_limit=scale.distinct)
        self._queue = LookAhead(scale.look_ahead) if policy == "oracle" else None
        self._order = self._rng.permutation(scale.distinct)  # the oracle's hot rows are in front

    def measure(self) -> dict[str, np.ndarray]:
        """Seconds [repeats, 2] by work: clock, calling thread's CPU."""
        warm = -(-self._scale.slots // self._scale.keys) + 5
        if self._queue is not None:
            return self._measure_foreseen(warm)
        for first in range(0, self._scale.slots, self._scale.keys):
            self._map.plan(self._order[first : first + self._scale.keys].copy())
        return _columns([self._timed(self._call()) for _ in range(5 + self._scale.repeats)][5:])

    def _call(self) -> KeySet:
        """Resident rows and others, shuffled."""
        hits = int(self._scale.hits * self._scale.keys)
        resident, _ = self._map.rows_in()
        others = np.unique(self._rng.integers(0, self._scale.distinct, 3 * (self._scale.keys - hits)))
        others = self._rng.permutation(others[self._map.slots_of(others) < 0])[: self._scale.keys - hits]
        return self._keys(np.concatenate([self._rng.choice(resident, hits, replace=False), others]))

    def _measure_foreseen(self, warm: int) -> dict[str, np.ndarray]:
        """Hits cannot be chosen after the oracle has seen the keys: hot rows that fit, beside others."""
        hot = int(0.95 * self._scale.slots)
        few = self._scale.keys - int(self._scale.hits * self._scale.keys)
        calls = []
        for number in range(warm + self._scale.repeats + self._scale.look_ahead):
            first = number * (self._scale.keys - few) % (hot - self._scale.keys)
            rows = self._order[first : first + self._scale.keys - few]
            others = self._rng.choice(self._scale.distinct - hot, few, replace=False) + hot
            calls.append(self._keys(np.concatenate([rows, self._order[others]])))
            self._queue.foresee(calls[-1])
        taken = [self._timed(keys) for keys in calls[: warm + self._scale.repeats]]
        return _columns(taken[warm:])

    def _keys(self, rows: np.ndarray) -> KeySet:
        return KeySet(self._ids[self._rng.permutation(rows)], [0, rows.size])

    def _timed(self, keys: KeySet) -> dict[str, tuple[float, float]]:
        start = _now()
        rows = self._index.find(keys)
        found = _now()
        foresight = self._queue.advance(keys, self._index.find) if self._queue else None
        foreseen = _now()
        self._map.plan(rows, foresight=foresight)
        end = _now()
        parts = {"look-up": (start, found), "plan": (foreseen, end), "look-up and plan": (start, end)}
        if self._queue:
            parts["look ahead"] = (found, foreseen)
        return {work: (b[0] - a[0], b[1] - a[1]) for work, (a, b) in parts.items()}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _columns(taken: list[dict[str, tuple[float, float]]]) -> dict[str, np.ndarray]:
    return {work: np.array([call[work] for call in taken]) for work in taken[0]}
