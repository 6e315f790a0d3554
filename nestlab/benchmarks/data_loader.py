"""The loader half of `bench data`: Batches of 4,096 Criteo samples, ready for the pipeline, on one thread.

In order, fully shuffled, and shuffled within windows, in turns with torch's DataLoader over a TensorDataset of the same
columns (default collate, no workers). `loader_cpu_share`: CPU seconds of a window-shuffled batch over those of a whole
DLRM step of `nestlab train` at the same batch size, on one thread each.

Prediction: within windows 2 million samples a second (in order 4 million, and each row copied once), 0.6 million fully
shuffled; 16 times torch's; 1 % of a step.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from nestlab.benchmarks.timing import interleave
from nestlab.data import Dataset, open_dataset

_ORDERS = {"in order": False, "window": "window", "full": "full"}
_THEIRS = "torch DataLoader"


@dataclass(frozen=True)
class Scale:
    """How much is read: `rows` of the twin, `repeats` passes of each kind, `steps` of training."""

    rows: int = 500_000
    batch: int = 4096
    repeats: int = 5
    steps: int = 20


def run_loader(scale: Scale | None = None) -> tuple[list[dict], dict]:
    """Rows, one a kind of reading, and the summary."""
    scale, threads = scale or Scale(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            data = open_dataset("criteo-synth", folder, rows=scale.rows)
            rows = _read(data, scale)
            step_s = _step_cpu_s(folder, scale)
    finally:
        torch.set_num_threads(threads)
    by = {row["reading"]: row for row in rows}
    window = by["window"]
    return rows, {
        "loader_samples_s": window["samples_s"],
        "loader_vs_torch_dataloader": round(window["samples_s"] / by[_THEIRS]["samples_s"], 2),
        "loader_cpu_share": round(window["cpu_us_a_sample"] * scale.batch / 1e6 / step_s, 5),
    }


def _read(data: Dataset, scale: Scale) -> list[dict]:
    count = data.info.rows * 8 // 10
    tensors = _tensors(data, count)
    work: dict[str, Callable[[], object]] = {
        name: lambda order=order: _drained(data.batches("train", scale.batch, shuffle=order))
        for name, order in _ORDERS.items()
    }
    work[_THEIRS] = lambda: _drained(DataLoader(tensors, scale.batch, shuffle=True))
    taken = interleave(work, scale.repeats, warm_up=1)
    return [_row(name, seconds, count) for name, seconds in taken.items()]


def _row(name: str, seconds: np.ndarray, count: int) -> dict:
    low, middle, high = np.percentile(count / seconds[:, 0], [10, 50, 90]).round().tolist()
    cpu = round(1e6 * float(np.median(seconds[:, 1])) / count, 4)
    return {"reading": name, "samples_s": middle, "p10": low, "p90": high, "cpu_us_a_sample": cpu}


def _tensors(data: Dataset, count: int) -> TensorDataset:
    """Dense values, ids (0 for a missing one) and labels, as tensors of all rows: what a first attempt would hold."""
    columns = data.table.slice(0, count)
    ids = np.stack([columns.column(name).combine_chunks().fill_null(0).to_numpy() for name in data.features], axis=1)
    dense = np.stack([columns.column(name).fill_null(0).to_numpy() for name in data.dense_names], axis=1)
    labels = columns.column("label").to_numpy().astype(np.float32)
    return TensorDataset(*map(torch.from_numpy, (dense.astype(np.float32), ids, labels)))


def _drained(batches) -> int:
    return sum(1 for _ in batches)


def _step_cpu_s(folder: str, scale: Scale) -> float:
    """CPU seconds of the process a step: `nestlab train`'s model and options, plain."""
    from nestlab.training.recipe import TrainOptions, assemble

    options = TrainOptions("criteo-synth", folder, rows=scale.rows, batch_size=scale.batch, device="cpu")
    with assemble(options, report=lambda line: None) as recipe:
        outputs = recipe.pipeline.run(itertools.cycle(recipe.train))
        spent = []
        for _ in range(scale.steps + 3):
            started = time.process_time()
            next(outputs)
            spent.append(time.process_time() - started)
    return float(np.median(spent[3:]))
