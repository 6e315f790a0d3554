"""`tracing`: what recording costs a step, switched on and off in turns, and what one event costs.

The step is the quickstart's: DLRM on `criteo-synth`, batch 512, on the CPU. Batches are loaded beforehand: LOAD takes
as long as the rest, and would halve every share. Both steps of a pair train on one batch; which of them records comes
first alternates, so that warm caches favour neither.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from nestlab.batch import Batch
from nestlab.pipeline import Action, Key, Lane, Pipeline, Stage
from nestlab.tracing import Recorder
from nestlab.tracing.memory import COUNT_EVERY
from nestlab.training import TrainOptions, assemble

LIMIT = 0.01  # what docs/design.md 4.5 allows, as a share of a step
_ROWS = 60_000  # of the twin: 90 batches, more than the caches hold


@dataclass(frozen=True)
class Scale:
    """How much is measured: `pairs` of steps, with and without, a setting; `events` for the cost of one."""

    pairs: int = 400
    events: int = 20_000
    batch_size: int = 512


def run(scale: Scale | None = None) -> dict:
    """Measures; about half a minute at the default scale.

    `overhead_share` is the median over pairs of with/without − 1, in CPU seconds on one thread: all of a step's work
    is that thread's then, and neighbours do not count. By the clock it stands beside. `computed_share` is what the cost
    of an event, of the count of activations and of the number of events make of the same step.
    """
    scale = scale or Scale()
    threads = torch.get_num_threads()
    pipeline, batches = _trained(scale)
    rows, costs = [], {}
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            pairs = scale.pairs if count == 1 else scale.pairs // 4
            rows.append({"work": "step with / without", "threads": count, **_pairs(pipeline, batches, pairs)})
        torch.set_num_threads(1)
        costs = {"event_ns": _event_ns(pipeline, scale.events), "count_ns": _count_ns(pipeline, batches[0], scale)}
    finally:
        torch.set_num_threads(threads)
    return {"bench": "tracing", "how": "measured", "rows": rows, "summary": _summary(pipeline, rows, costs, threads)}


def _trained(scale: Scale) -> tuple[Pipeline, list[Batch]]:
    """A pipeline that has seen every batch twice: no row is new any more, and no kernel is compiled."""
    options = TrainOptions(dataset="criteo-synth", rows=_ROWS, batch_size=scale.batch_size, device="cpu")
    recipe = assemble(options)
    recipe.pipeline.recorder = None
    batches = list(recipe.train)
    for _ in range(2):
        list(recipe.pipeline.run(batches))
    return recipe.pipeline, batches


def _pairs(pipeline: Pipeline, batches: list[Batch], pairs: int) -> dict[str, float]:
    seconds = np.zeros((pairs, 2, 2))  # pair, without or with, clock or CPU of this thread
    for pair in range(pairs):
        batch = batches[pair % len(batches)]
        for recording in (0, 1) if pair % 2 else (1, 0):
            # A recorder of its own begins its window here, so that one pair in so many counts activations, as a run's.
            first = 0 if pair % COUNT_EVERY == 0 else 1
            pipeline.recorder = _recorder(pipeline, first) if recording else None
            start, start_cpu = time.perf_counter(), time.thread_time()
            pipeline.progress(iter([batch]))
            seconds[pair, recording] = time.perf_counter() - start, time.thread_time() - start_cpu
    pipeline.recorder = None
    median = np.median(seconds[:, 0], axis=0) * 1e3
    clock, cpu = (_ratios(seconds[:, :, kind]) for kind in (0, 1))
    figures = {"pairs": pairs, "step_ms": float(median[0]), "step_cpu_ms": float(median[1])}
    return {**figures, **clock, **{f"cpu_{name}": value for name, value in cpu.items()}}


def _ratios(seconds: np.ndarray) -> dict[str, float]:
    """Of [pairs, 2] without and with: the median ratio, its spread and its standard error (500 resamples)."""
    ratios = seconds[:, 1] / seconds[:, 0]
    low, middle, high = np.percentile(ratios, [10, 50, 90]).tolist()
    resampled = np.median(np.random.default_rng(1).choice(ratios, (500, ratios.size)), axis=1)
    return {"ratio": middle, "p10": low, "p90": high, "error": float(resampled.std())}


def _recorder(pipeline: Pipeline, first: int) -> Recorder:
    """One whose window lies around the next batch; `first` batches of it have gone by."""
    return Recorder(first_batch=pipeline._progress.batch - first, batches=COUNT_EVERY)


def _event_ns(pipeline: Pipeline, events: int) -> float:
    """An action that does nothing, recorded and not: the difference."""
    action = Action(Key(Stage.UPDATE, 10**9), Lane.COMPUTE)
    step, perform = pipeline._step, pipeline._step.perform
    step.perform = lambda _: 0
    try:
        costs = []
        for _ in range(9):
            pipeline.recorder = Recorder(first_batch=10**9)
            costs.append(_each_ns(pipeline._recorded, action, events // 9))
            pipeline.recorder = None
            costs[-1] -= _each_ns(pipeline._perform, action, events // 9)
    finally:
        step.perform = perform
    return float(np.median(costs))


def _each_ns(function, argument: Action, times: int) -> float:
    start = time.thread_time_ns()
    for _ in range(times):
        function(argument)
    return (time.thread_time_ns() - start) / times


def _count_ns(pipeline: Pipeline, batch: Batch, scale: Scale) -> float:
    """FORWARD with the count of activations, less FORWARD without."""
    step, t = pipeline._step, 10**9
    step.source = iter([batch])
    for stage in (step.load, step.h2d, step.route, step.prepare, step.emb_exchange):
        stage(t)
    taken: dict[bool, list[int]] = {False: [], True: []}
    for turn in range(max(20, scale.pairs)):
        step.counts_activations = bool(turn % 2)
        start = time.thread_time_ns()
        step.forward(t)
        taken[step.counts_activations].append(time.thread_time_ns() - start)
    step.counts_activations = False
    return float(np.median(taken[True]) - np.median(taken[False]))


def _summary(pipeline: Pipeline, rows: list[dict], costs: dict[str, float], threads: int) -> dict:
    one = rows[0]
    events = len(pipeline.schedule.entries)
    computed = (events * costs["event_ns"] + costs["count_ns"] / COUNT_EVERY) / (one["step_cpu_ms"] * 1e6)
    return {
        "overhead_share": round(one["cpu_ratio"] - 1, 5),
        "overhead_error": round(one["cpu_error"], 5),
        "overhead_share_by_clock": round(one["ratio"] - 1, 5),
        "computed_share": round(computed, 5),
        "event_ns": round(costs["event_ns"]),
        "count_ns": round(costs["count_ns"]),
        "events_a_step": events,
        "step_cpu_ms": round(one["step_cpu_ms"], 3),
        "limit": LIMIT,
        "threads": 1,
        "torch_threads": threads,
    }
