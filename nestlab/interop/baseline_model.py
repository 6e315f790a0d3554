"""A model of ours as torchrec has one: a module from a batch to a loss, over tables that torchrec shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)
from torchrec.streamable import Pipelineable

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore
from nestlab.errors import UserError
from nestlab.interop.torchrec import to_kjt


@dataclass
class JaggedBatch(Pipelineable):
    """A batch with its sparse part as a KeyedJaggedTensor: what a dense part sees of it are `dense` and `labels`."""

    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor

    @classmethod
    def of(cls, batch: Batch, one_each: bool = False) -> JaggedBatch:
        """On the storage of `batch`.

        Raises:
            UserError: samples have weights, which torchrec's mean over ranks cannot honour; or, where every feature
                must have exactly one id a sample (`one_each`), one has more or less.
        """
        if batch.weights is not None:
            raise UserError("baseline: torchrec averages the ranks' means; leave the samples' weights out")
        if one_each and not bool(batch.lengths.eq(1).all()):
            raise UserError("baseline: dedup takes one id a sample and feature; use dedup=False for bags")
        return cls(batch.dense, to_kjt(batch), batch.labels)

    def to(self, device: torch.device, non_blocking: bool = False) -> JaggedBatch:
        moved = (each.to(device, non_blocking=non_blocking) for each in (self.dense, self.sparse, self.labels))
        return JaggedBatch(*moved)

    def record_stream(self, stream: torch.Stream) -> None:
        for each in (self.dense, self.sparse, self.labels):
            each.record_stream(stream)


class Bags:
    """torchrec's pooled features, as `nestlab.embedding.Embedded` gives them to a dense part."""

    def __init__(self, pooled: KeyedTensor) -> None:
        self._pooled = pooled

    def pooled(self, feature: str) -> Tensor:
        """[B, dim]."""
        return self._pooled[feature]

    def stack(self, features: Sequence[str]) -> Tensor:
        """[B, F, dim]; a view where these are all the features, in the tables' order."""
        values, keys = self._pooled.values(), self._pooled.keys()
        if list(features) == keys:
            return values.view(values.shape[0], len(features), -1)
        # Not feature by feature: the gradient of every slice would be as large as the whole.
        pieces = dict(zip(keys, values.split(self._pooled.length_per_key(), dim=1), strict=True))
        return torch.stack([pieces[feature] for feature in features], dim=1)


class Rows:
    """The same for an EmbeddingCollection's sequences of one row a sample: a bag of one id is its row."""

    def __init__(self, rows: dict[str, JaggedTensor]) -> None:
        self._rows = rows

    def pooled(self, feature: str) -> Tensor:
        """[B, dim]."""
        return self._rows[feature].values()

    def stack(self, features: Sequence[str]) -> Tensor:
        """[B, F, dim]."""
        return torch.stack([self.pooled(feature) for feature in features], dim=1)


class Head(nn.Module):
    """The dense part and the loss: one module to torchrec's tracer, which follows the code that leads to the tables."""

    def __init__(self, dense: nn.Module, view: type[Bags] | type[Rows]) -> None:
        super().__init__()
        self.dense = dense
        self._view = view

    def forward(self, batch: JaggedBatch, looked_up: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        output = self.dense(batch, self._view(looked_up))
        loss = output.losses.mean()
        return loss, (loss.detach(), output.predictions, batch.labels)


class BaselineModel(nn.Module):
    """`forward(batch)` returns what torchrec's pipelines want: the loss (the mean over this rank's samples), and what
    `progress` hands out: the loss, predictions [B] and labels [B]."""

    def __init__(self, tables: EmbeddingBagCollection | EmbeddingCollection, dense: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        self.head = Head(dense, Bags if isinstance(tables, EmbeddingBagCollection) else Rows)

    def forward(self, batch: JaggedBatch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        return self.head(batch, self.tables(batch.sparse))


def collection(store: EmbeddingStore, rows: Mapping[str, int], sequences: bool) -> nn.Module:
    """torchrec's collection of the store's tables, without memory for weights, which come with sharding.

    Args:
        rows: `num_embeddings` by table; ids are 0 … rows − 1.
        sequences: an EmbeddingCollection in place of an EmbeddingBagCollection.

    Raises:
        UserError: a table without a number of rows, or (for sequences) tables of several dims.
    """
    tables = [table for group in store.groups for table in group.tables]
    if missing := [table.name for table in tables if table.name not in rows]:
        raise UserError(f"baseline: torchrec's tables have a fixed size; give rows for {', '.join(missing)}")
    if sequences and len(store.groups) > 1:
        raise UserError("baseline: dedup takes an EmbeddingCollection, whose tables have one dim; use dedup=False")
    same = [
        {
            "name": table.name,
            "embedding_dim": table.dim,
            "num_embeddings": rows[table.name],
            "feature_names": list(table.features),
        }
        for table in tables
    ]
    if sequences:
        return EmbeddingCollection([EmbeddingConfig(**each) for each in same], device=torch.device("meta"))
    pooled = [
        EmbeddingBagConfig(**each, pooling=PoolingType[t.pooling.upper()]) for each, t in zip(same, tables, strict=True)
    ]
    return EmbeddingBagCollection(pooled, device=torch.device("meta"))
