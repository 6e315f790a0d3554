"""torchrec's own pipelines on a model of ours: the same tables, batches and start weights, under its sharding.

Only to be imported where torchrec is (by way of `nestlab.interop.torchrec`). `TrainPipelineBase` and
`TrainPipelineSparseDist` run on CPU with gloo; torchrec's other pipelines need a device with streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore
from nestlab.errors import UserError
from nestlab.interop import baseline_dedup
from nestlab.interop.baseline_model import Bags, BaselineModel, JaggedBatch, Rows, Sequences, collection, of_sequences
from nestlab.interop.baseline_plan import plan_by_hand, sharder_for
from nestlab.models import RecModel

PIPELINES = {"base": TrainPipelineBase, "sparse_dist": TrainPipelineSparseDist}
SHARDINGS = ("table_wise", "row_wise")


@dataclass(frozen=True)
class Variant:
    """One of torchrec's ways to train.

    Attributes:
        pipeline: `base` (one batch after the other) or `sparse_dist` (the next batch's ids travel meanwhile).
        sharding: `table_wise` (each rank some of the tables) or `row_wise` (consecutive rows of every table).
        dedup: a rank sends and looks up an id once. torchrec 1.8 offers it for EmbeddingCollections alone, which tables
            of sequences are; of bags with one id a sample and feature, which is then asked for, the sum is its row. On
            the CPU fbgemm lacks one of its operators; NestLab's stands in (`nestlab.interop.baseline_dedup`).

    Raises:
        UserError: a value that there is not.
    """

    pipeline: str = "sparse_dist"
    sharding: str = "table_wise"
    dedup: bool = False

    def __post_init__(self) -> None:
        for name, values in (("pipeline", tuple(PIPELINES)), ("sharding", SHARDINGS)):
            if getattr(self, name) not in values:
                raise UserError(f"baseline: no {name} '{getattr(self, name)}'; there are {', '.join(values)}")

    @property
    def name(self) -> str:
        """For tables: `TrainPipelineSparseDist, table-wise, dedup`."""
        dedup = ", dedup" if self.dedup else ""
        return f"{PIPELINES[self.pipeline].__name__}, {self.sharding.replace('_', '-')}{dedup}"


class Baseline:
    """A copy of `model` as torchrec trains it, over the default process group (which is to be there, gloo).

    The dense part is copied and wrapped in DDP, as DistributedModelParallel does. Tables are sharded by hand; sharding
    initialises them anew, so that their weights are copied from the store afterwards, and their optimizer states set.
    Each rank's loss is the mean over its own samples, and torchrec averages the ranks: with equal batches a rank that
    is our loss, with others it is not.

    Args:
        model: what to copy; it stays as it is. Its tables are to lie whole in this rank's store, or to be untouched.
        rows: `num_embeddings` by table; ids are 0 … rows − 1.
        optimizer: makes the dense part's optimizer from its parameters.

    Raises:
        UserError: something that torchrec has no equal of.
    """

    def __init__(
        self,
        model: RecModel,
        rows: Mapping[str, int],
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        variant: Variant | None = None,
    ) -> None:
        self.variant = variant or Variant()
        store = model.embedding
        self._sequences = of_sequences(store)
        if store.dtype != torch.float32:
            raise UserError(f"baseline: fbgemm's tables are float32; the store has {store.dtype}")
        self._sharded = _shard(model, rows, self.variant, self._sequences)
        _copy_weights(self._sharded, store)
        _set_states(self._sharded, store)
        kind = PIPELINES[self.variant.pipeline]
        self._pipeline = kind(self._sharded, optimizer(self.dense.parameters()), torch.device("cpu"))

    def batches(self, batches: Iterable[Batch]) -> list[JaggedBatch]:
        """Batches as torchrec takes them, to be converted before time is taken."""
        one_each = self.variant.dedup and not self._sequences
        return [JaggedBatch.of(batch, one_each) for batch in batches]

    def progress(self, iterator: Iterator[JaggedBatch]) -> tuple[Tensor, Tensor, Tensor]:
        """The next batch: this rank's loss (0-d), predictions [B] or [B, k] and labels [B].

        Raises:
            StopIteration: the iterator is at its end, and everything is trained. Another iterator may follow.
        """
        try:
            return self._pipeline.progress(iterator)
        except StopIteration:
            self._pipeline.reset()  # torchrec's base pipeline would stay at its end
            raise

    def local_weights(self) -> dict[str, tuple[int, Tensor]]:
        """By table the first row and the weights [n, dim] that lie on this rank; no copies."""
        return {_table(name): (first, weights) for name, first, weights in _shards(self._sharded.state_dict())}

    @property
    def dense(self) -> nn.Module:
        """The dense part, trained."""
        return self._sharded.module.head.dense


def _shard(model: RecModel, rows: Mapping[str, int], variant: Variant, of_sequences: bool) -> DistributedModelParallel:
    if variant.dedup:
        baseline_dedup.provide()
    unpooled = of_sequences or variant.dedup
    tables = collection(model.embedding, rows, sequences=unpooled)
    configs = tables.embedding_configs() if unpooled else tables.embedding_bag_configs()
    view = Sequences if of_sequences else Rows if unpooled else Bags
    env = ShardingEnv.from_process_group(torch.distributed.group.WORLD)
    return DistributedModelParallel(
        BaselineModel(tables, copy.deepcopy(model.dense), view),
        env=env,
        device=torch.device("cpu"),
        plan=plan_by_hand(configs, variant.sharding, env.world_size),
        sharders=[sharder_for(model.embedding.optimizer, unpooled, variant.dedup)],
    )


def _shards(tensors: Mapping[str, Any]) -> Iterator[tuple[str, int, Tensor]]:
    """Of the sharded ones among `tensors`, what lies here: name, first row, [n, …] in the modules' own memory."""
    for name, tensor in tensors.items():
        if isinstance(tensor, ShardedTensor):
            for shard in tensor.local_shards():
                yield name, shard.metadata.shard_offsets[0], shard.tensor


@torch.no_grad()
def _copy_weights(sharded: DistributedModelParallel, store: EmbeddingStore) -> None:
    for name, first, weights in _shards(sharded.state_dict()):
        ids = torch.arange(first, first + weights.shape[0])
        weights.copy_(store.full_weight(_table(name), ids))


@torch.no_grad()
def _set_states(sharded: DistributedModelParallel, store: EmbeddingStore) -> None:
    states = sharded.fused_optimizer.state_dict()["state"]
    for of_table in states.values():
        for _, _, state in _shards(of_table):
            state.fill_(store.optimizer.initial_state)


def _table(name: str) -> str:
    """`t0` of `tables.embedding_bags.t0.weight`."""
    return name.split(".")[-2]
