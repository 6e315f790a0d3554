"""Where torchrec's tables go, said by hand: its planner refuses row-wise sharding on the CPU, its modules do not."""

from __future__ import annotations

from typing import Any

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec import EmbeddingBagConfig, EmbeddingConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ParameterSharding, ShardingPlan
from torchrec.distributed.types import ShardingType as Kind

from nestlab.embedding import SGD, Adagrad, RowOptimizer, RowWiseAdagrad
from nestlab.errors import UserError

TableSettings = EmbeddingBagConfig | EmbeddingConfig


def plan_by_hand(tables: list[TableSettings], sharding: str, world: int) -> ShardingPlan:
    """A plan for a module called `tables` over `world` ranks.

    `table_wise` gives each rank as many consecutive tables, so that pooled features arrive in the tables' order and
    need no reordering; `row_wise` gives each rank ⌈rows / world⌉ consecutive rows of every table, the last ranks what
    is left of it, which is what torchrec's exchange takes for granted.
    """
    shards = _whole if sharding == "table_wise" else _slices
    kind = Kind.TABLE_WISE if sharding == "table_wise" else Kind.ROW_WISE
    module = EmbeddingModuleShardingPlan()
    for number, table in enumerate(tables):
        parts = shards(table, number * world // len(tables), world)
        spec = EnumerableShardingSpec(
            [ShardMetadata([first, 0], [rows, table.embedding_dim], f"rank:{rank}/cpu") for rank, first, rows in parts]
        )
        module[table.name] = ParameterSharding(
            sharding_type=kind.value, compute_kernel="fused", ranks=[rank for rank, _, _ in parts], sharding_spec=spec
        )
    return ShardingPlan({"tables": module})


def _whole(table: TableSettings, rank: int, world: int) -> list[tuple[int, int, int]]:
    """(rank, first row, rows)."""
    return [(rank, 0, table.num_embeddings)]


def _slices(table: TableSettings, rank: int, world: int) -> list[tuple[int, int, int]]:
    block = -(-table.num_embeddings // world)
    starts = [min(rank * block, table.num_embeddings) for rank in range(world + 1)]
    return [(rank, starts[rank], starts[rank + 1] - starts[rank]) for rank in range(world)]


def sharder_for(optimizer: RowOptimizer, unpooled: bool, dedup: bool) -> ModuleSharder:
    """The sharder whose fused optimizer does to a row what `optimizer` does; of EmbeddingCollections if `unpooled`.

    Raises:
        UserError: fbgemm has no such optimizer on the CPU.
    """
    fused = _fused(optimizer)
    if unpooled:
        return EmbeddingCollectionSharder(fused, use_index_dedup=dedup)
    return EmbeddingBagCollectionSharder(fused)


def _fused(optimizer: RowOptimizer) -> dict[str, Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    names = {SGD: EmbOptimType.EXACT_SGD, Adagrad: EmbOptimType.EXACT_ADAGRAD}
    names[RowWiseAdagrad] = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    if type(optimizer) not in names:
        raise UserError(
            f"baseline: fbgemm has no fused '{optimizer.name}' on the CPU; use sgd, adagrad or rowwise_adagrad"
        )
    if getattr(optimizer, "state_scale", 1.0) != 1.0:
        raise UserError(f"baseline: fbgemm's {optimizer.name} has no state_scale; leave it at 1")
    settings: dict[str, Any] = {"optimizer": names[type(optimizer)], "learning_rate": optimizer.lr}
    if isinstance(optimizer, Adagrad | RowWiseAdagrad):
        settings["eps"] = optimizer.eps
    return settings
