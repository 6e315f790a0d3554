"""A model is a sparse part and a dense part; nothing ever replaces a module's forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from nestlab.embedding import EmbeddingStore


class DenseOutput(NamedTuple):
    """What the dense part returns for B samples.

    `losses` [B] is unreduced: the weighted mean is taken over the *global* batch, which only the pipeline knows.
    """

    losses: Tensor
    predictions: Tensor  # [B] probabilities, or [B, k]: of several tasks, or the state that a ranking goes by


@dataclass(frozen=True)
class RecModel:
    """`embedding` turns a batch's ids into rows; `dense.forward(batch, embedded)` returns a DenseOutput.

    `embedded` (`nestlab.embedding.Embedded`) gives a feature's pooled vectors [B, dim] or its sequence of rows.
    """

    embedding: EmbeddingStore
    dense: nn.Module
