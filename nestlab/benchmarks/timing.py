"""Interleaved timing: A B A B … in one process, because a machine's speed drifts from minute to minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

import numpy as np


def interleave(
    work: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 3,
    before: Callable[[str], object] | None = None,
) -> dict[str, np.ndarray]:
    """Seconds [repeats] of each piece of work, taken in turns after `warm_up` untimed rounds.

    `before(name)` runs untimed ahead of each call: what has to be put back for the work to be the same again.
    """
    seconds: dict[Hashable, list[float]] = {name: [] for name in work}
    for turn in range(warm_up + repeats):
        for name, function in work.items():
            if before is not None:
                before(name)
            start = time.perf_counter()
            function()
            end = time.perf_counter()
            if turn >= warm_up:
                seconds[name].append(end - start)
    return {name: np.array(values) for name, values in seconds.items()}


def rate(seconds: np.ndarray, count: int) -> dict[str, float]:
    """Millions a second: median, and the 10th and 90th percentile of the repeats."""
    low, middle, high = np.percentile(count / seconds / 1e6, [10, 50, 90])
    return {"mkeys_s": round(middle, 2), "p10": round(low, 2), "p90": round(high, 2), "repeats": len(seconds)}
