"""`larger`: a table eight times as large as the host memory it may use, every row of it trained.

16.8 million rows (2^24) of 64 weights and as many states of Adagrad: 8 GiB of records over 1 GiB of frames and a disk.
Each row is changed once, a part of them a second time after it went down; weights and states of rows drawn at random
are compared with what the optimizer's formula says.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nestlab.embedding import Adagrad, EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers
from nestlab.errors import UserError

_LR, _DIM, _SEED = 0.1, 64, 0
_PERIOD = 0.005  # seconds between two samples of memory
_ODD = np.int64(-7046029254386353131)  # spreads ids over all 64 bits


@dataclass(frozen=True)
class Scale:
    """`rows` of the table, `capacity` bytes of host memory, `batch` keys a step, `again` steps on rows seen before."""

    rows: int = 1 << 24
    capacity: int = 1 << 30
    batch: int = 1 << 16
    again: int = 16
    compared: int = 10_000
    folder: str = ""  # of the disk tier; empty: the system's folder for temporary files


def run(scale: Scale | None = None) -> dict:
    """Trains and compares; two to five minutes and 8 GiB of disk at the default scale."""
    scale = scale or Scale()
    with tempfile.TemporaryDirectory(prefix="nestlab-larger-", dir=scale.folder or None) as folder:
        return _run(scale, folder)


def _run(scale: Scale, folder: str) -> dict:
    tiers = Tiers(host_capacity=scale.capacity, disk=folder)
    store = EmbeddingStore([TableConfig("t", _DIM)], Adagrad(lr=_LR), seed=_SEED, tiers=tiers)
    base, touched = _memory(), np.zeros(scale.rows, dtype=np.int8)
    started = time.perf_counter()
    with _Peak() as peak:
        for step, numbers in enumerate(_batches(scale), 1):
            _train(store, numbers, step)
            touched[numbers] += 1
    seconds = time.perf_counter() - started
    weight_difference, state_difference = _differences(store, touched, scale)
    pool = store.hosts[0].memory
    row = {
        "work": "train every row",
        "rows": scale.rows,
        "table_bytes": scale.rows * pool.record_bytes,
        "host_capacity_bytes": scale.capacity,
        "seconds": round(seconds, 1),
        "rows_s": round(int(touched.sum()) / seconds),
        "records_read": pool.promoted,
        "records_written": pool.demoted,
        "least_touched": int(touched.min()),
        "compared_rows": scale.compared,
        "memory_samples": peak.samples,
    }
    return {
        "bench": "larger",
        "how": "measured",
        "rows": [row],
        "summary": {
            "peak_anonymous_bytes": peak.bytes["anonymous"],
            "peak_file_bytes": peak.bytes["file"],
            "anonymous_bytes_before": base["anonymous"],
            "largest_difference_weight": weight_difference,
            "largest_difference_state": state_difference,
            "every_row_changed": bool(touched.min() >= 1),
        },
    }


def _batches(scale: Scale) -> Iterator[np.ndarray]:
    """Row numbers of each step: all of them once, in an order without locality; then some again."""
    rng = np.random.default_rng(_SEED)
    steps = -(-scale.rows // scale.batch)
    for step in range(steps):
        yield np.arange(step, scale.rows, steps)
    for _ in range(scale.again):
        yield rng.choice(scale.rows, min(scale.batch, scale.rows), replace=False, shuffle=False)


def _gradient(numbers: np.ndarray) -> np.ndarray:
    """[n] float32: one value a row, never 0, exact in float32; all weights of the row get it."""
    return ((numbers % 7 - 3) * 0.25 + 0.125).astype(np.float32)


def _train(store: EmbeddingStore, numbers: np.ndarray, step: int) -> None:
    residency = store.prepare([KeySet(numbers * _ODD, [0, numbers.size])])
    store.commit(residency)
    store.apply(residency, [torch.from_numpy(np.repeat(_gradient(numbers)[:, None], _DIM, axis=1))], StepInfo(step))
    store.writeback(residency)
    store.release(residency)


def _differences(store: EmbeddingStore, touched: np.ndarray, scale: Scale) -> tuple[float, float]:
    """The largest differences of weights and of states to Adagrad's closed form.

    After n equal gradients g the weight is w₀ − lr·sign(g)·Σ 1/√k, k = 1 … n, and the state n·g², exact in float32.
    """
    numbers = np.random.default_rng(1).choice(scale.rows, min(scale.compared, scale.rows), replace=False)
    fresh = EmbeddingStore([TableConfig("t", _DIM)], Adagrad(lr=_LR), seed=_SEED)  # untouched: initial weights
    initial = fresh.full_weight("t", numbers * _ODD).double().numpy()
    times, gradient = touched[numbers], _gradient(numbers).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(1 / np.sqrt(np.arange(1, 128)))])[times]
    host = store.hosts[0]
    records = host.records(host.find(KeySet(numbers * _ODD, [0, numbers.size]))).double().numpy()
    weights, states = initial - _LR * (np.sign(gradient) * sums)[:, None], (times * gradient**2)[:, None]
    return float(np.abs(records[:, :_DIM] - weights).max()), float(np.abs(records[:, _DIM:] - states).max())


class _Peak:
    """The most memory of this process inside the `with`, sampled by a thread: a step's own peaks are among it.

    VmHWM would not do: it has file pages in it, and what was before.

    Attributes:
        bytes: as `_memory` has them.
        samples: how many there were.
    """

    def __init__(self) -> None:
        self.bytes, self.samples = _memory(), 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-peak", daemon=True)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_PERIOD):
            self.bytes = {name: max(value, self.bytes[name]) for name, value in _memory().items()}
            self.samples += 1


def _memory() -> dict[str, int]:
    """Resident bytes of this process: anonymous ones, and pages of files that the kernel may drop.

    Raises:
        UserError: the system does not tell them apart.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        raise UserError("bench larger: it needs /proc/self/status to tell anonymous memory from files; run it on Linux")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return {name: int(fields[key].split()[0]) * 1024 for name, key in (("anonymous", "RssAnon"), ("file", "RssFile"))}
