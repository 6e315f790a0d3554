"""Interleaved timing: A B A B … in one process, because a machine's speed drifts from minute to minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

import numpy as np


def interleave(
    work: Mapping[Hashable, Callable[[], object]],
    repeats: int,
    warm_up: int = 3,
    before: Callable[[Hashable], object] | None = None,
) -> dict[Hashable, np.ndarray]:
    """Seconds [repeats, 2] of each piece of work, in turns after `warm_up` untimed rounds: clock, calling thread's CPU.

    `before(name)` runs untimed ahead of each call: what has to be put back for the work to be the same again.
    """
    seconds: dict[Hashable, list[tuple[float, float]]] = {name: [] for name in work}
    for turn in range(warm_up + repeats):
        for name, function in work.items():
            if before is not None:
                before(name)
            start, start_cpu = time.perf_counter(), time.thread_time()
            function()
            end, end_cpu = time.perf_counter(), time.thread_time()
            if turn >= warm_up:
                seconds[name].append((end - start, end_cpu - start_cpu))
    return {name: np.array(values) for name, values in seconds.items()}


def rate(seconds: np.ndarray, count: int) -> dict[str, float]:
    """Millions a second by the clock: median, 10th and 90th percentile of the repeats; and the median a CPU second.

    The two medians of work on one thread differ by as much as other processes took of its core. CPU seconds are the
    calling thread's: a worker thread of torch spins on after its work, and would be charged to whatever comes next.
    """
    low, middle, high = np.percentile(count / seconds[:, 0] / 1e6, [10, 50, 90]).round(2).tolist()
    cpu = round(count / float(np.median(seconds[:, 1])) / 1e6, 2)
    return {"mkeys_s": middle, "p10": low, "p90": high, "per_cpu_s": cpu, "repeats": len(seconds)}
