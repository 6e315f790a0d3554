"""Tables: from ids to rows, pooled, and back with gradients. See docs/design.md 4.2 for names and contract."""

from nestlab.embedding.config import TableConfig, TableGroup
from nestlab.embedding.keys import GroupKeys, KeyLayout, Scratch, deduplicate, route
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    LazyAdam,
    RowOptimizer,
    RowWiseAdagrad,
    StepInfo,
    optimizer,
)
from nestlab.embedding.pooling import Embedded, embed
from nestlab.embedding.residency import Residency
from nestlab.embedding.store import EmbeddingStore
from nestlab.embedding.tiers import Tiers
from nestlab.embedding.warmup import warm_up

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Embedded",
    "EmbeddingStore",
    "GroupKeys",
    "KeyLayout",
    "KeySet",
    "LazyAdam",
    "Residency",
    "RowOptimizer",
    "RowWiseAdagrad",
    "Scratch",
    "StepInfo",
    "TableConfig",
    "TableGroup",
    "Tiers",
    "deduplicate",
    "embed",
    "optimizer",
    "route",
    "warm_up",
]
