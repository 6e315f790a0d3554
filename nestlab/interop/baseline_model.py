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
    """A batch, which the dense part sees, and what tables look up of it as a KeyedJaggedTensor, on the same storage."""

    batch: Batch
    sparse: KeyedJaggedTensor

    @classmethod
    def of(cls, batch: Batch, one_each: bool = False) -> JaggedBatch:
        """On the storage of `batch`; features that no table looks up (its `values`) are copied out of the sparse part.

        Raises:
            UserError: samples have weights, which torchrec's mean over ranks cannot honour; or, where every feature
                must have exactly one id a sample (`one_each`), one has more or less.
        """
        if batch.weights is not None:
            raise UserError("baseline: torchrec averages the ranks' means; leave the samples' weights out")
        if one_each and not bool(batch.lengths.eq(1).all()):
            raise UserError("baseline: dedup takes one id a sample and feature; use dedup=False for bags")
        sparse = to_kjt(batch)
        if batch.values:
            sparse = sparse.permute([c for c, name in enumerate(batch.features) if name not in batch.values])
        return cls(batch, sparse)

    def to(self, device: torch.device, non_blocking: bool = False) -> JaggedBatch:
        return JaggedBatch(*(each.to(device, non_blocking=non_blocking) for each in (self.batch, self.sparse)))

    def record_stream(self, stream: torch.Stream) -> None:
        for each in (self.batch, self.sparse):
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


class Sequences:
    """The same for tables of sequences."""

    def __init__(self, rows: dict[str, JaggedTensor]) -> None:
        self._rows = rows

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self._rows.keys())

    def sequence(self, feature: str) -> tuple[Tensor, Tensor]:
        """Values [nnz_f, dim] and lengths [B]."""
        return self._rows[feature].values(), self._rows[feature].lengths()


class Head(nn.Module):
    """The dense part and the loss: one module to torchrec's tracer, which follows the code that leads to the tables."""

    def __init__(self, dense: nn.Module, view: type[Bags] | type[Rows] | type[Sequences]) -> None:
        super().__init__()
        self.dense = dense
        self._view = view

    def forward(self, batch: JaggedBatch, looked_up: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        output = self.dense(batch.batch, self._view(looked_up))
        loss = output.losses.mean()
        return loss, (loss.detach(), output.predictions, batch.batch.labels)


class BaselineModel(nn.Module):
    """`forward(batch)` returns what torchrec's pipelines want: the loss (the mean over this rank's samples), and what
    `progress` hands out: the loss, predictions [B] and labels [B]."""

    def __init__(self, tables: nn.Module, dense: nn.Module, view: type[Bags] | type[Rows] | type[Sequences]) -> None:
        super().__init__()
        self.tables = tables
        self.head = Head(dense, view)

    def forward(self, batch: JaggedBatch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        return self.head(batch, self.tables(batch.sparse))


def of_sequences(store: EmbeddingStore) -> bool:
    """Whether the tables give sequences; else they give bags.

    Raises:
        UserError: some of them the one, some the other.
    """
    tables = [table for group in store.groups for table in group.tables]
    found = [table.name for table in tables if table.pooling == "none"]
    if 0 < len(found) < len(tables):
        raise UserError(
            f"baseline: tables {', '.join(found)} give sequences and others bags, and a torchrec collection gives one "
            "of them; use one pooling"
        )
    return bool(found)


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
        raise UserError(
            "baseline: an EmbeddingCollection, which sequences and dedup take, has tables of one dim; give them one, "
            "or for bags dedup=False"
        )
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
