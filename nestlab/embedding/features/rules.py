"""When an id gets a row, and when a row is given up: the rules, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nestlab.embedding.config import MAX_THRESHOLD, TableConfig
from nestlab.errors import UserError

ADMIT = ("none", "count", "sketch", "show_click")
EVICT = ("none", "age", "score")
_LEAST_EVERY = 10  # batches between two rounds of eviction at the least, as RecSDK has it


@dataclass(frozen=True)
class FeatureRules:
    """One set of rules for all tables; a table may have thresholds and a default value of its own (`TableConfig`).

    Attributes:
        admit: `count` (exact counts), `sketch` (count-min: bounded memory, may admit early, never late), `show_click`
            (score show_weight·shows + click_weight·clicks); `none` gives every id a row at once.
        admit_threshold: an id gets a row in the batch in which its count or score, this batch included, reaches it.
        evict: `age` (not seen for more than evict_after batches) or `score` (the lowest evict_share of the rows).
        evict_after: batches.
        evict_share: of the rows in use, at each round, 0 to 1.
        evict_every: batches from one round to the next, at least 10.
        show_weight, click_weight: α and β of both scores, 0 or more; a click counts as its label.
        decay: of both scores, at each round, 0 to 1.
        default_value: every weight of the constant row that a refused id reads.
        sketch_bytes: memory of the sketch of one group of tables.

    Raises:
        UserError: a value outside its range.
    """

    admit: Literal["none", "count", "sketch", "show_click"] = "none"
    admit_threshold: float = 2
    evict: Literal["none", "age", "score"] = "none"
    evict_after: int = 1000
    evict_share: float = 0.01
    evict_every: int = 100
    show_weight: float = 1.0
    click_weight: float = 10.0
    decay: float = 0.98
    default_value: float = 0.0
    sketch_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        _one_of("admit", self.admit, ADMIT)
        _one_of("evict", self.evict, EVICT)
        _between("admit_threshold", self.admit_threshold, 0, MAX_THRESHOLD)
        _between("evict_share", self.evict_share, 0, 1)
        _between("decay", self.decay, 0, 1)
        _between("show_weight", self.show_weight, 0)
        _between("click_weight", self.click_weight, 0)
        _between("default_value", self.default_value)
        _whole("evict_after", self.evict_after, 1)
        _whole("evict_every", self.evict_every, _LEAST_EVERY)
        _whole("sketch_bytes", self.sketch_bytes, 64)

    @property
    def counts(self) -> bool:
        """Whether keys must carry counts and clicks."""
        return self.admit != "none" or self.evict == "score"

    def thresholds(self, tables: Sequence[TableConfig]) -> np.ndarray:
        """[T] float64: the admission threshold of each table."""
        return np.array([_own(t.admit_threshold, self.admit_threshold) for t in tables], dtype=np.float64)

    def ages(self, tables: Sequence[TableConfig]) -> np.ndarray:
        """[T] int64: `evict_after` of each table, batches."""
        return np.array([_own(t.evict_after, self.evict_after) for t in tables], dtype=np.int64)

    def defaults(self, tables: Sequence[TableConfig]) -> np.ndarray:
        """[T] float64: the weight that a refused id of each table reads."""
        return np.array([_own(t.default_value, self.default_value) for t in tables], dtype=np.float64)


def _own(value, rule):
    return rule if value is None else value


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise UserError(f"FeatureRules: unknown {name} '{value}'; use one of {', '.join(values)}")


def _between(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        text = (
            "a finite number" if low == -math.inf else f"{low:g} or more" if high == math.inf else f"{low:g} … {high:g}"
        )
        raise UserError(f"FeatureRules: {name} is {value}; give {text}")


def _whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise UserError(f"FeatureRules: {name} is {value}; give a whole number, {least} or more")
