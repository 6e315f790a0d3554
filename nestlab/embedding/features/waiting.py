"""The waiting room: one number for each key that has no row yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nestlab.embedding.host.arena import zeros
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex
from nestlab.embedding.keyset import KeySet
from nestlab.errors import UserError
from nestlab.host import memory_bytes


class WaitingRoom:
    """Key → number (int64 or float64), growing; a key that leaves gives its place to the next one."""

    def __init__(self, dtype: type, tables: int) -> None:
        self._dtype, self._tables = dtype, tables
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex()
        capacity = memory_bytes() // 32  # what a key costs at the least; address space only
        self._values = zeros(capacity, self._dtype)
        self._places = Rows(capacity, 8)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + 8 * self._places.ever

    def values(self, keys: KeySet) -> np.ndarray:
        """[n]: the number of each key, 0 for one that is not here."""
        places = self._index.find(keys)
        return np.where(places < 0, 0, self._values[np.maximum(places, 0)])

    def put(self, keys: KeySet, values: np.ndarray) -> None:
        """The number of each key from now on."""
        places, _ = self._index.find_or_insert(keys, self._places)
        self._values[places] = values

    def remove(self, keys: KeySet) -> None:
        places = self._index.remove(keys)
        self._places.give_back(places[places >= 0])

    def scale(self, factor: float) -> None:
        """Multiplies every number."""
        self._values[: self._places.ever] *= factor

    def state(self, name: str) -> dict[str, np.ndarray]:
        """`ids` [n] int64, ascending per table; `offsets` [T+1] int64; and the numbers [n], called `name`."""
        tables = [self._index.entries(table) for table in range(self._tables)]
        ids = np.concatenate([ids for ids, _ in tables])
        places = np.concatenate([places for _, places in tables])
        offsets = np.cumsum([0] + [ids.size for ids, _ in tables])
        return {"ids": ids, "offsets": offsets, name: self._values[places]}

    def load_state(self, state: dict[str, np.ndarray], name: str) -> None:
        """In place of all that is here.

        Raises:
            UserError: the state is not one of these numbers, or of another number of tables.
        """
        if name not in state or state["offsets"].size != self._tables + 1:
            raise UserError(
                f"admission: the saved state has {', '.join(state)} of {state.get('offsets', np.empty(1)).size - 1} "
                f"tables, not {name} of {self._tables}; load it under the rules and tables it was saved with"
            )
        self._clear()
        self.put(KeySet(state["ids"], state["offsets"]), state[name])


def merge_keyed(states: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """States with disjoint keys as one, ids ascending per table."""
    tables = states[0]["offsets"].size - 1
    table_of = np.concatenate([np.repeat(np.arange(tables), np.diff(state["offsets"])) for state in states])
    ids = np.concatenate([state["ids"] for state in states])
    order = np.lexsort((ids, table_of))
    merged = {name: np.concatenate([s[name] for s in states])[order] for name in states[0] if name != "offsets"}
    return {**merged, "offsets": np.concatenate(([0], np.cumsum(np.bincount(table_of, minlength=tables))))}


def select_keyed(state: dict[str, np.ndarray], owned: Callable[[np.ndarray, int], np.ndarray]) -> dict[str, np.ndarray]:
    """The keys for which owned(ids [n], table) [n] bool holds."""
    ids, offsets = state["ids"], state["offsets"]
    tables = range(offsets.size - 1)
    kept = np.concatenate([np.empty(0, dtype=bool)] + [owned(ids[offsets[t] : offsets[t + 1]], t) for t in tables])
    ends = np.concatenate(([0], np.cumsum(kept)))[offsets]
    return {name: ends if name == "offsets" else values[kept] for name, values in state.items()}
