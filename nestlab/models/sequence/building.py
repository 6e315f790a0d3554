"""A retrieval model from a few choices: tables, store, encoder and loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nestlab.embedding import EmbeddingStore, RowOptimizer, RowWiseAdagrad, TableConfig, Tiers
from nestlab.errors import UserError
from nestlab.models.base import RecModel
from nestlab.models.sequence.encoder import Encoder, Size
from nestlab.models.sequence.fuxi import FuXi
from nestlab.models.sequence.hstu import HSTU
from nestlab.models.sequence.retrieval import Retrieval
from nestlab.models.sequence.sasrec import SASRec

if TYPE_CHECKING:
    from nestlab.data.sequences import SequenceData

ENCODERS: dict[str, type[Encoder]] = {"hstu": HSTU, "fuxi": FuXi, "sasrec": SASRec}
TEMPERATURE = 0.2  # came highest on a validation part of KuaiRand-Pure; published encoders take 0.05
TABLES = {"item": ("item", "target", "negative"), "action": ("action",)}


def sequence_model(
    encoder: str,
    data: SequenceData,
    size: Size,
    *,
    rows: RowOptimizer | None = None,
    tiers: Tiers | None = None,
    tables: Sequence[TableConfig] | None = None,
    temperature: float = TEMPERATURE,
    dtype: torch.dtype = torch.float32,
) -> RecModel:
    """Over the batches of `data`; all start weights come from the seed of `size`.

    Args:
        encoder: `hstu`, `fuxi` or `sasrec`.
        size: its `longest` is replaced by the history of the data.
        rows: optimizer of both tables; None: row-wise Adagrad.
        temperature: of the sampled softmax.
        tables: those of `sequence_tables`, the items' as a tensor train, say; None: both of rows.
        dtype: of all weights and states.

    Raises:
        UserError: no encoder is called so.
    """
    if encoder not in ENCODERS:
        raise UserError(f"sequence model: encoder '{encoder}': choose one of {', '.join(ENCODERS)}")
    size = replace(size, longest=data.options.history)
    rows = rows or RowWiseAdagrad(lr=0.05)
    configs = sequence_tables(size.dim) if tables is None else tables
    store = EmbeddingStore(configs, rows, seed=size.seed, dtype=dtype, tiers=tiers)
    dense = Retrieval(ENCODERS[encoder](size), temperature=temperature)
    return RecModel(store, dense.to(dtype))


def sequence_tables(dim: int) -> list[TableConfig]:
    """One of items, for inputs, targets and negatives alike, and one of actions."""
    return [TableConfig(name, dim, features=features, pooling="none") for name, features in TABLES.items()]
