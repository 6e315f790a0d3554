"""torchrec's embedding modules over NestLab's tiers: KeyedJaggedTensor in, KeyedTensor or JaggedTensors out.

Only to be imported where torchrec is (by way of `nestlab.interop.torchrec`). The manual is docs/torchrec.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from nestlab.batch import Batch
from nestlab.embedding import Embedded, EmbeddingStore, RowOptimizer, Tiers, embed, route
from nestlab.errors import UserError
from nestlab.exchange import Mesh
from nestlab.interop import tiered_state
from nestlab.interop.tiered_given import taken
from nestlab.interop.tiered_optimizer import TieredOptimizer
from nestlab.interop.tiered_records import keep_own
from nestlab.interop.tiered_step import StepInBackward
from nestlab.interop.tiered_tables import Jagged, Lookup, features_of, jagged, lookups, table_configs


class Tiered(FusedOptimizerModule, nn.Module):
    """What both collections share: the store, its optimizer handle, and the forward up to the embedded features.

    Attributes:
        store: the tables. They are no parameters: `parameters()` is empty, and the step happens in backward.
        configs: torchrec's.
    """

    prefix: str  # of the tables in torchrec's state dict

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig | EmbeddingConfig],
        optimizer: RowOptimizer,
        tiers: Tiers | None = None,
        *,
        weighted: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if isinstance(optimizer, torch.optim.Optimizer) or not isinstance(optimizer, RowOptimizer):
            raise UserError(
                f"{type(self).__name__}: optimizer is {optimizer!r}; give one of nestlab.embedding: SGD, Adagrad, "
                "RowWiseAdagrad or LazyAdam"
            )
        if tiers is not None and tiers.looks_ahead:
            raise UserError("the oracle policy looks ahead, and a module is shown one batch at a time; use lru")
        self.configs = list(tables)
        self._lookups = lookups(self.configs)
        self._weighted = weighted
        self.store = EmbeddingStore(
            table_configs(self.configs, self._lookups, weighted), optimizer, seed=seed, dtype=dtype, tiers=tiers
        )
        self._fused_optimizer = TieredOptimizer(self, optimizer.lr)
        self._mesh = Mesh()  # over which a pipeline has spread the rows
        self._steps = StepInBackward(self.store, lambda: self._fused_optimizer.lr)

    @property
    def fused_optimizer(self) -> TieredOptimizer:
        """Where the learning rate is set, by hand or by a scheduler."""
        return self._fused_optimizer

    @property
    def device(self) -> torch.device:
        """Where the results lie."""
        return torch.device(self.store.options.device)

    def settle(self) -> None:
        """Ends the stay of a batch that was looked up for training and got no backward: what the store's own calls
        `flush` and `export` ask for. Every call of this module does so by itself."""
        self._refuse_spread("the tables' weights and states")
        self._steps.settle()

    def batch_of(self, features: KeyedJaggedTensor) -> Batch:
        """The features as NestLab has them, those that no table looks up as `values`; no dense values, labels 0.

        Raises:
            UserError: the features do not fit the tables.
        """
        return jagged(features, self._lookups, self._weighted, values=True).batch

    def features_of(self, batch: Batch) -> KeyedJaggedTensor:
        """The way back, on the batch's storage: keys in the tables' order, then those that no table looks up."""
        return features_of(batch, self._lookups)

    def spread(self, mesh: Mesh) -> None:
        """From now on this rank holds the rows of its own shard alone; others that it has are dropped.

        Training and evaluation are then a pipeline's, and `state_dict` is refused.
        """
        if mesh.shards > 1:
            self.settle()
            keep_own(self.store, mesh)
        self._mesh = mesh

    def _embed(self, features: KeyedJaggedTensor) -> tuple[Jagged, Embedded]:
        features = maybe_td_to_kjt(features, None)
        given = jagged(features, self._lookups, self._weighted)
        if (fetched := taken(self, features)) is not None:
            return given, fetched
        self._refuse_spread("look-up")
        keys = route(given.batch, self.store.layout, count=self.store.options.features.counts)
        if self.training and torch.is_grad_enabled():
            _refuse_ranks()
            rows = self._steps.rows([group.keys for group in keys])
        else:
            residency = self.store.prepare([group.keys for group in keys], train=False)
            rows = [self.store.gather(residency, group) for group in range(len(keys))]
            self.store.release(residency)
        return given, embed(rows, keys, given.batch.size)

    def _refuse_spread(self, what: str) -> None:
        """Raises UserError where this rank holds a share of the rows alone."""
        if self._mesh.shards > 1:
            raise UserError(
                f"{what}: the rows are spread over {self._mesh.shards} ranks by a NestPipeTrainPipeline; look up by "
                "its progress and evaluate, and save tables by nestlab.embedding.checkpoint"
            )

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """torchrec's keys, `<prefix>.<table>.weight`, [num_embeddings, dim] each."""
        for name, weight in tiered_state.export_weights(self).items():
            destination[prefix + name] = weight

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, *rest) -> None:
        for config in self.configs:
            key = f"{prefix}{self.prefix}.{config.name}.weight"
            if key in state_dict:
                tiered_state.import_weight(self, config, state_dict[key])
            elif strict:
                missing_keys.append(key)


class TieredEmbeddingBagCollection(Tiered, EmbeddingBagCollectionInterface):
    """`torchrec.EmbeddingBagCollection` with its rows in tiers and the optimizer step in backward.

    Args:
        tables: torchrec's own configurations. `num_embeddings` bounds initial weights and exports, not the ids.
        optimizer: of rows, for all tables.
        tiers: where rows live; None: in host memory alone.
        is_weighted: sum pooling by the weights of the KeyedJaggedTensor.
        seed: of initial weights, uniform within torchrec's bounds, but other numbers than torchrec's.
        dtype: of records and results, float32 or float64.

    Raises:
        UserError: a table wants what is not supported.
    """

    prefix = "embedding_bags"

    def __init__(
        self,
        tables: list[EmbeddingBagConfig],
        optimizer: RowOptimizer,
        tiers: Tiers | None = None,
        is_weighted: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(tables, optimizer, tiers, weighted=is_weighted, seed=seed, dtype=dtype)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """[B, ΣD], in torchrec's order: table by table.

        Raises:
            UserError: the features do not fit the tables, or the batch does not fit the tiers.
        """
        _, embedded = self._embed(features)
        return KeyedTensor(
            keys=[lookup.name for lookup in self._lookups],
            length_per_key=[lookup.dim for lookup in self._lookups],
            values=_joined(embedded, self._lookups),
        )

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self.configs

    def is_weighted(self) -> bool:
        return self._weighted


class TieredEmbeddingCollection(Tiered, EmbeddingCollectionInterface):
    """`torchrec.EmbeddingCollection` with its rows in tiers and the optimizer step in backward.

    Args: as `TieredEmbeddingBagCollection`; `need_indices` gives the ids as weights of the results, as torchrec does.
    """

    prefix = "embeddings"

    def __init__(
        self,
        tables: list[EmbeddingConfig],
        optimizer: RowOptimizer,
        tiers: Tiers | None = None,
        need_indices: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if len(dims := {config.embedding_dim: config.name for config in tables}) > 1:
            wrong = ", ".join(f"{name} has {dim}" for dim, name in dims.items())
            raise UserError(f"TieredEmbeddingCollection: tables of one embedding_dim, as in torchrec; {wrong}")
        super().__init__(tables, optimizer, tiers, seed=seed, dtype=dtype)
        self._need_indices = need_indices

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Values [nnz_f, dim] by feature, in torchrec's order.

        Raises:
            UserError: the features do not fit the tables, or the batch does not fit the tiers.
        """
        given, embedded = self._embed(features)
        ids = given.ids.split(given.lengths.sum(dim=1).tolist())
        return {
            lookup.name: JaggedTensor(
                values=embedded.sequence(lookup.inner)[0],
                lengths=given.lengths[i],
                weights=ids[i] if self._need_indices else None,
            )
            for i, lookup in enumerate(self._lookups)
        }

    def embedding_configs(self) -> list[EmbeddingConfig]:
        return self.configs

    def need_indices(self) -> bool:
        return self._need_indices

    def embedding_dim(self) -> int:
        return self._lookups[0].dim

    def embedding_names_by_table(self) -> list[list[str]]:
        return [[p.name for p in self._lookups if p.table == config.name] for config in self.configs]


def _joined(embedded: Embedded, pairs: Sequence[Lookup]) -> Tensor:
    """[B, ΣD]; lookups of one dim that follow each other are taken together."""
    runs = [[pair.inner for pair in run] for _, run in groupby(pairs, key=lambda pair: pair.dim)]
    parts = [embedded.stack(run).flatten(1) for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _refuse_ranks() -> None:
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise UserError("tiered collections train in one process so far: each rank would train tables of its own")
