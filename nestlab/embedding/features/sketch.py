"""Admission by a count-min sketch: bounded memory for any number of ids, at the price of one-sided errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nestlab.embedding.config import TableConfig
from nestlab.embedding.features.feature_kernels import sketch_admit
from nestlab.embedding.features.rules import FeatureRules
from nestlab.embedding.host.arena import zeros
from nestlab.embedding.keyset import KeySet
from nestlab.errors import UserError

ROWS = 4  # counters a key


class SketchAdmission:
    """As `CountAdmission`, but counts are estimates that are never too low: a key may come early, never late.

    Only refused keys are written, so that no counter exceeds the largest threshold less one: counters of 8 bits do up
    to a threshold of 256, and there are four times as many of them in the same memory. An admitted key cannot be taken
    out of its counters: after an eviction it comes back sooner than by exact counts, up to at once. Decisions depend on
    the order of the stream and on what else is in the sketch, so that they may differ between numbers of shards.

    Shards: each key is counted at one owner. A shard that takes over keys takes the whole sketch. Sketches merge by the
    maximum of each counter, which is tighter than their sum and still never too low, because all that was counted of a
    key is in its owner's sketch; so splitting and merging again costs nothing.
    """

    def __init__(self, rules: FeatureRules, tables: Sequence[TableConfig]) -> None:
        self._thresholds = rules.thresholds(tables)
        self._dtype = np.uint8 if self._thresholds.max() <= 256 else np.uint32
        self._width = 1 << (rules.sketch_bytes // (ROWS * np.dtype(self._dtype).itemsize)).bit_length() - 1
        self._sketch = zeros(ROWS * self._width, self._dtype)

    @property
    def nbytes(self) -> int:
        return self._sketch.nbytes

    def admit(self, keys: KeySet) -> np.ndarray:
        admitted = np.empty(len(keys), dtype=bool)
        sketch_admit(self._sketch, self._width, keys.ids, keys.offsets, keys.counts, self._thresholds, admitted)
        return admitted

    def forget(self, keys: KeySet) -> None:
        """A sketch cannot forget one key without making another late: nothing is done."""

    def end_round(self) -> None:
        """Counts do not decay."""

    def state(self) -> dict[str, np.ndarray]:
        """`sketch` [4, width] uint8 or uint32."""
        return {"sketch": self._sketch.reshape(ROWS, self._width).copy()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Takes a sketch of any width and counter: a narrower one is repeated, a wider one folded by maximum.

        Raises:
            UserError: the state is not a sketch.
        """
        if "sketch" not in state:
            raise UserError(
                f"admission: the saved state has {', '.join(state)}, not a sketch; load it under the rules it was "
                "saved with"
            )
        saved = _fit(state["sketch"], self._width)
        most = np.iinfo(self._dtype).max  # a count above it admits under every threshold here, as the count itself
        self._sketch[:] = np.minimum(saved, most).astype(self._dtype).reshape(-1)

    @staticmethod
    def merge(states: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        width = min(state["sketch"].shape[1] for state in states)
        return {"sketch": np.maximum.reduce([_fit(state["sketch"], width) for state in states])}

    @staticmethod
    def select(state: dict[str, np.ndarray], owned: Callable[[np.ndarray, int], np.ndarray]) -> dict[str, np.ndarray]:
        return state


def _fit(sketch: np.ndarray, width: int) -> np.ndarray:
    """[4, width]: a counter's number is a hash modulo a power of two, so that widths translate."""
    if sketch.shape[1] > width:
        return sketch.reshape(ROWS, -1, width).max(axis=1)
    return np.tile(sketch, (1, width // sketch.shape[1]))
