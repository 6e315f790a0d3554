"""Three batches of four samples with two ids each, and a table whose weights count their own updates."""

from __future__ import annotations

import hashlib
import json

import pandas as pd
import torch

from nestlab.batch import Batch
from nestlab.data.dataset import DatasetInfo
from nestlab.embedding import EmbeddingStore, KeySet, TableConfig, Tiers, optimizer

FEATURE = "item"
IDS = tuple(range(1, 9))
# Id 1 is in batch 0 and in batch 2, not between; 3 and 4 are in 0 and 1, 5 is in 1 and 2; 7 and 8 come last.
# The samples alternate between two pairs of ids that never meet: what clustering is for.
BATCHES = (
    ((1, 2), (3, 4), (1, 2), (3, 4)),
    ((3, 5), (4, 6), (3, 5), (4, 6)),
    ((1, 5), (7, 8), (1, 5), (7, 8)),
)
TITLE = "three batches over eight ids (SYNTHETIC)"


def keys_of(batch: int) -> list[int]:
    """K(t): the unique ids of a batch, in order of first appearance."""
    return list(dict.fromkeys(i for sample in BATCHES[batch] for i in sample))


def key_set(batch: int) -> KeySet:
    ids = keys_of(batch)
    return KeySet(torch.tensor(ids), torch.tensor([0, len(ids)]))


def as_batch(number: int) -> Batch:
    """The batch as a trainer gets it: one feature, a bag of two ids a sample, no dense values."""
    samples = BATCHES[number]
    ids = torch.tensor([i for sample in samples for i in sample])
    lengths = torch.tensor([len(sample) for sample in samples])
    return Batch(torch.empty(len(samples), 0), (FEATURE,), ids, lengths, torch.zeros(len(samples)))


def counting_store(tiers: Tiers | None = None) -> EmbeddingStore:
    """A table of one weight a row, all 0 at first; with gradients of −1 in all, each update adds exactly 1."""
    return EmbeddingStore([TableConfig(FEATURE, 1, init_bound=0.0)], optimizer("sgd", lr=1.0), tiers=tiers)


def updates_before(id: int, batch: int) -> int:
    """What the plain loop reads for an id in a batch: how many batches before it have the id."""
    return sum(id in keys_of(earlier) for earlier in range(batch))


def overview() -> pd.DataFrame:
    """A row a batch: its samples, its unique ids, and which of them come from where."""
    rows = []
    for t, samples in enumerate(BATCHES):
        own, before = keys_of(t), keys_of(t - 1) if t else []
        skipped = [i for i in own if t > 1 and i in keys_of(t - 2) and i not in before]
        rows.append(
            {
                "batch t": t,
                "samples": "  ".join("{" + ", ".join(map(str, sample)) + "}" for sample in samples),
                "K(t)": _listed(own),
                "K(t) ∩ K(t−1)": _listed(i for i in own if i in before),
                "in t−2 and t, not in t−1": _listed(skipped),
            }
        )
    return pd.DataFrame(rows)


def info() -> DatasetInfo:
    """For the manifest and titles."""
    digest = hashlib.sha256(json.dumps(BATCHES).encode()).hexdigest()
    return DatasetInfo("toy", "synthetic", sum(map(len, BATCHES)), digest, TITLE, convention="toy")


def _listed(ids) -> str:
    return ", ".join(map(str, ids)) or "–"
