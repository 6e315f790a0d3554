"""Indices for `bench tt`: skewed and in order, skewed and scattered, or uniform."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags

IDS = ("ranked", "hashed", "uniform")
SKEW = 1.05  # of Zipf


def draw(ids: str, rows: int, count: int, seed: int = 7) -> Tensor:
    """[count] int64 in [0, rows); `ranked`: row 0 is the most frequent; `hashed`: the same draws, rows permuted."""
    rng = np.random.default_rng(seed)
    if ids == "uniform":
        return torch.from_numpy(rng.integers(0, rows, count))
    cumulated = np.cumsum(np.arange(1, rows + 1) ** -SKEW)
    drawn = np.searchsorted(cumulated, rng.random(count) * cumulated[-1]).clip(max=rows - 1)
    return torch.from_numpy(rng.permutation(rows)[drawn] if ids == "hashed" else drawn)


def bags(rows: Tensor, length: int) -> Bags:
    """Of `length` indices each; the last one may hold fewer."""
    starts = torch.arange(0, rows.numel(), length)
    return Bags(rows, torch.cat([starts, torch.tensor([rows.numel()])]))
