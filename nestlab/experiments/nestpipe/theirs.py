"""torchrec's two CPU pipelines as rows of the ablation: the same tables, batches and start weights."""

from __future__ import annotations

import time

import numpy as np
import torch

from nestlab.errors import UserError
from nestlab.experiments.nestpipe.comparing import Whole, largest_of_part
from nestlab.experiments.nestpipe.links import LOOPBACK
from nestlab.experiments.nestpipe.model import build_model, dense_optimizer
from nestlab.experiments.nestpipe.training import Bench, Figures
from nestlab.experiments.ranks import of_all

PIPELINES = ("base", "sparse_dist")


def missing(settings) -> str:
    """Why there are no such rows; empty: there are."""
    if not settings.torchrec:
        return "left out"
    if settings.sequential:
        return "they are compared on rows, whose features are pooled"
    if torch.device(settings.device).type != "cpu":
        return "its pipelines are compared on the CPU"
    from nestlab.interop import torchrec

    usable, reason = torchrec.available()
    return "" if usable else reason


def train(bench: Bench, pipeline: str, reference: Whole) -> Figures:
    """One pass with table-wise sharding, without index deduplication: what torchrec does by itself. A step's time is
    the clock's, of the slowest rank: nothing is traced. All ranks call it."""
    from nestlab.interop.baselines import PIPELINES as KINDS
    from nestlab.interop.baselines import Baseline, Variant

    s, stream = bench.settings, bench.stream
    model = build_model(stream, s.dim, s.layers)
    baseline = Baseline(model, stream.rows, dense_optimizer, Variant(pipeline))
    batches = iter(baseline.batches(stream.batches))
    for _ in range(s.warm):
        baseline.progress(batches)
    of_all(bench.transport, {"begin": 0.0})
    started = time.perf_counter()
    for _ in range(s.steps):
        baseline.progress(batches)
    step_ms = 1e3 * (time.perf_counter() - started) / s.steps
    while True:
        try:
            baseline.progress(batches)
        except StopIteration:
            break
    weights = baseline.local_weights()
    nbytes = 2 * sum(values.nbytes for _, values in weights.values())  # Adagrad's state is as large
    told = of_all(bench.transport, {"step_ms": step_ms, "peak_tables_bytes": nbytes})
    slowest = float(np.max(told["step_ms"]))
    return {
        "case": f"torchrec {KINDS[pipeline].__name__}",
        "setting": LOOPBACK,
        "how": "measured",
        "parts": 1,
        "step_ms": slowest,
        "samples_s": 1e3 * s.batch_size * s.world_size / slowest,
        "peak_tables_bytes": float(np.max(told["peak_tables_bytes"])),
        "difference": largest_of_part(bench, weights, baseline.dense, reference),
        "bit_equal": False,
    }


def tried(bench: Bench, pipeline: str, reference: Whole) -> Figures | None:
    """None where torchrec has no equal of the batches; every rank comes to the same."""
    try:
        return train(bench, pipeline, reference)
    except UserError:
        return None
