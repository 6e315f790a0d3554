"""Reordering a rank's batch so that its micro-batches share keys."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from nestlab.batch import Batch
from nestlab.batching.rules import ClusteringRule
from nestlab.batching.samples import sample_keys
from nestlab.errors import UserError


def cluster(batch: Batch, rule: ClusteringRule, parts: int, tables: Mapping[str, str] | None = None) -> Batch:
    """The batch in the order that `rule` chooses for `parts` micro-batches; only the order of its samples changes.

    Args:
        batch: in host memory.
        tables: the table of each feature that counts, see `sample_keys`.

    Raises:
        UserError: `tables` names a feature that the batch lacks, or the rule gives no permutation.
    """
    if parts <= 1 or batch.size <= 1:
        return batch
    order = np.ascontiguousarray(rule.order(sample_keys(batch, tables), parts))
    _require_permutation(order, batch.size, rule)
    return batch if (order == np.arange(batch.size)).all() else batch.select(torch.from_numpy(order))


def _require_permutation(order: np.ndarray, size: int, rule: ClusteringRule) -> None:
    if order.shape != (size,) or order.dtype != np.int64 or not np.array_equal(np.sort(order), np.arange(size)):
        raise UserError(
            f"clustering rule {type(rule).__name__}: its order of {size} samples is no int64 permutation of them; "
            "each sample must stand in it once"
        )
