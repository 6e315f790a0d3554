"""What ranking models read: pooled features, runs of rows added up, dense values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.errors import UserError
from nestlab.models.sequence.jagged import sums_of_runs, uncompiled


def vector_of(embedded: Embedded, feature: str) -> Tensor:
    """[B, dim] of a pooled feature, or the sum over a sequence's rows: zeros where there is none.

    A candidate shares the table of the history, so that it is a sequence (of one row) too.
    """
    try:
        return embedded.pooled(feature)
    except UserError:
        return uncompiled(sums_of_runs)(*embedded.sequence(feature))


def inputs_of(batch: Batch, embedded: Embedded, features: Sequence[str], like: Tensor) -> Tensor:
    """[B, D + F·dim]: dense values and the vectors of features, side by side; dtype and device as `like`."""
    vectors = [vector_of(embedded, feature) for feature in features]
    return torch.cat([batch.dense.to(like.device, like.dtype), *vectors], dim=1)


def events_of(embedded: Embedded, history: Sequence[str]) -> tuple[Tensor, Tensor]:
    """[n, dim], the sum of what is known of an event, and lengths [B], of sequence features of one length a sample."""
    rows, lengths = embedded.sequence(history[0])
    for feature in history[1:]:
        rows = rows + embedded.sequence(feature)[0]
    return rows, lengths
