"""Compiles (or loads from numba's cache) every kernel of the exchange once, as `nestlab.embedding.warmup` does."""

from __future__ import annotations

import threading

import numpy as np
import torch

from nestlab.exchange import routing_kernels, row_kernels
from nestlab.exchange.codec import Int8

_done: set[str] = set()
_lock = threading.Lock()


def warm_up() -> None:
    """Calls each kernel on next to nothing, with the types that the exchange uses. Cheap when done before."""
    with _lock:
        if _done:
            return
        _warm_routing()
        for dtype in (torch.float32, torch.float64):
            _warm_rows(dtype)
        _done.add("all")


def _warm_routing() -> None:
    one, offsets, two = np.zeros(1, np.int64), np.array([0, 1]), np.zeros((1, 1), np.int64)
    masks, clicks = np.zeros(1, np.uint64), np.zeros(1)
    routing_kernels.order_by_owner(one, offsets, two.copy(), one.copy())
    for values in (one, clicks):
        routing_kernels.put(values, one, values.copy())
    routing_kernels.follow(one.copy(), one)
    routing_kernels.mark_parts(one, two + 1, offsets, masks, two.copy())
    routing_kernels.split_positions(one, two + 1, masks, one + 1, one.copy(), two.copy())
    routing_kernels.split_entries(masks, one, one + 1, one.copy(), two.copy())
    routing_kernels.add_up(one, one, clicks, one.copy(), clicks.copy())


def _warm_rows(dtype: torch.dtype) -> None:
    rows = torch.zeros(1, 1, dtype=dtype)
    row_kernels.add_rows(rows.numpy(), np.zeros(1, np.int64), rows.clone().numpy())
    codec = Int8()
    codec.decode(codec.encode(rows), 1, dtype)
