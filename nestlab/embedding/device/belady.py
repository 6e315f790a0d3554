"""The offline optimum of hits: the limit of every policy under the planner's rule."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def most_hits(batches: Sequence[np.ndarray], capacity: int) -> int:
    """The most hits that any choice of victims can have over `batches` of rows or ids [U_t], each without repeats.

    The rule: plan t holds K(t) ∪ K(t−1). So a use at most two batches after the one before is a hit whatever leaves.
    Any other use t of a row last used at s is a hit if its row is kept over the plans s+2 … t−1, in the room that the
    rule leaves there. That is choosing the most intervals where plan p bears capacity − |K(p) ∪ K(p−1)| of them:
    taking them as they begin and dropping the one that ends last is optimal (Belady 1966, for one row a request).

    Raises:
        ValueError: the capacity is too small for the rule.
    """
    hits = 0
    last: dict[int, int] = {}  # row → its last use
    uses = _next_uses(batches)
    kept: list[tuple[int, int]] = []  # (−next use, row), latest first
    alive: set[tuple[int, int]] = set()  # of `kept`; only asked for membership and size
    before: list[int] = []  # the batch two back
    previous: list[int] = []
    for plan, batch in enumerate(batches):
        rows = batch.tolist()
        held = set(rows) | set(previous)
        if len(held) > capacity:
            raise ValueError(f"belady: plan {plan} needs {len(held)} slots and there are {capacity}")
        for row in before:
            if row not in held and row in uses[plan - 2]:
                heapq.heappush(kept, (-uses[plan - 2][row], row))
                alive.add((-uses[plan - 2][row], row))
        for row in rows:
            interval = (-plan, row)
            if row in last and (plan - last[row] <= 2 or interval in alive):
                hits += 1
            alive.discard(interval)
            last[row] = plan
        while len(alive) > capacity - len(held):
            alive.discard(heapq.heappop(kept))
        before, previous = previous, rows
    return hits


def _next_uses(batches: Sequence[np.ndarray]) -> list[dict[int, int]]:
    """By batch: row → the next batch that uses it, for rows that one does."""
    coming: dict[int, int] = {}
    uses: list[dict[int, int]] = []
    for number in range(len(batches) - 1, -1, -1):
        rows = batches[number].tolist()
        uses.append({row: coming[row] for row in rows if row in coming})
        coming.update(dict.fromkeys(rows, number))
    return uses[::-1]
