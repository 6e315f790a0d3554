"""torchrec's table configurations and KeyedJaggedTensors in NestLab's terms, and torchrec's names of results."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import TableConfig
from nestlab.errors import UserError

if TYPE_CHECKING:
    from torchrec import EmbeddingBagConfig, EmbeddingConfig, KeyedJaggedTensor


_VALUE = ":"  # ahead of the name of a key that no table looks up; those of pairs begin with a number


@dataclass(frozen=True)
class Lookup:
    """One feature looked up in one table.

    Attributes:
        inner: the name of the pair in the store, where a feature belongs to one table only: torchrec lets several
            tables look up one feature.
        feature: the key of the KeyedJaggedTensor.
        name: torchrec's name of the result: the feature, or `feature@table` where the feature is looked up repeatedly.
    """

    inner: str
    feature: str
    table: str
    dim: int
    name: str


def lookups(configs: Sequence[EmbeddingBagConfig | EmbeddingConfig]) -> tuple[Lookup, ...]:
    """In torchrec's order: table by table, and feature by feature in each."""
    pairs = [(feature, config) for config in configs for feature in names_of(config)]
    count = Counter(feature for feature, _ in pairs)
    return tuple(
        Lookup(
            inner=f"{number}:{feature}",
            feature=feature,
            table=config.name,
            dim=config.embedding_dim,
            name=feature if count[feature] == 1 else f"{feature}@{config.name}",
        )
        for number, (feature, config) in enumerate(pairs)
    )


def names_of(config: EmbeddingBagConfig | EmbeddingConfig) -> list[str]:
    """The features of a table; one called as the table where none is named."""
    return config.feature_names or [config.name]


def table_configs(
    configs: Sequence[EmbeddingBagConfig | EmbeddingConfig], pairs: Sequence[Lookup], weighted: bool
) -> list[TableConfig]:
    """NestLab's tables. Their rows appear when ids do: `num_embeddings` bounds initial weights and exports only.

    Raises:
        UserError: a table wants what is not supported.
    """
    return [_table(config, [p.inner for p in pairs if p.table == config.name], weighted) for config in configs]


def _table(config: EmbeddingBagConfig | EmbeddingConfig, features: list[str], weighted: bool) -> TableConfig:
    pooling = config.pooling.value.lower() if hasattr(config, "pooling") else "none"
    low, high = config.get_weight_init_min(), config.get_weight_init_max()
    if hasattr(config, "pooling") and pooling == "none":
        _refuse(config, "a bag needs pooling SUM or MEAN", "use TieredEmbeddingCollection for sequences")
    if config.data_type.value != "FP32":
        _refuse(config, f"data_type is {config.data_type.value}; records are float32", "leave data_type out")
    if weighted and pooling == "mean":
        _refuse(config, "torch has no weighted mean pooling", "use SUM with weights that sum to 1 a bag")
    if low != -high:
        _refuse(config, f"initial weights from {low} to {high}", "give bounds ±b, and load other weights")
    if not _is_default(config.init_fn, low, high):
        _refuse(config, "an init_fn cannot fill rows that appear one by one", "leave it out and load its weights")
    return TableConfig(config.name, config.embedding_dim, tuple(features), pooling=pooling, init_bound=high)


def _is_default(init_fn: Any, low: float, high: float) -> bool:
    """Whether it is what torchrec puts there itself: uniform between the config's own bounds."""
    return init_fn is None or (
        isinstance(init_fn, functools.partial)
        and init_fn.func is torch.nn.init.uniform_
        and init_fn.keywords == {"a": low, "b": high}
    )


def _refuse(config: EmbeddingBagConfig | EmbeddingConfig, what: str, remedy: str) -> None:
    raise UserError(f"table '{config.name}': {what}; {remedy}")


@dataclass(frozen=True, eq=False)
class Jagged:
    """The features that tables look up, in the order of their lookups.

    Attributes:
        batch: as NestLab has it; without dense values, its labels 0.
        ids: [nnz] as given, in the dtype given.
        lengths: [F, B] as given.
    """

    batch: Batch
    ids: Tensor
    lengths: Tensor


def jagged(kjt: KeyedJaggedTensor, pairs: Sequence[Lookup], weighted: bool, values: bool = False) -> Jagged:
    """Takes the features from a KeyedJaggedTensor; nothing is copied where they are its first keys, in this order.

    Args:
        values: keys that no table looks up follow, as the batch's `values`, in the order given.

    Raises:
        UserError: a feature is missing, weights are missing, or the batch size varies by feature.
    """
    _check(kjt, pairs, weighted)
    others = _not_looked_up(kjt.keys(), pairs) if values else ()
    column = {key: number for number, key in enumerate(kjt.keys())}
    columns = [column[key] for key in (*(pair.feature for pair in pairs), *others)]
    lengths = kjt.lengths().view(len(column), -1)
    ids, weights, lengths = _columns(kjt.values(), kjt.weights() if weighted else None, lengths, columns)
    size = lengths.shape[1]
    batch = Batch(
        dense=torch.zeros(size, 0),
        features=(*(pair.inner for pair in pairs), *map(_VALUE.__add__, others)),
        ids=ids.to(torch.int64),
        lengths=lengths.reshape(-1).to(torch.int64),
        labels=torch.zeros(size),
        id_weights=weights,
        values=tuple(map(_VALUE.__add__, others)),
    )
    return Jagged(batch, ids, lengths)


def features_of(batch: Batch, pairs: Sequence[Lookup]) -> KeyedJaggedTensor:
    """The KeyedJaggedTensor of a batch that `jagged` made, or of a part of it: each feature once, then the values."""
    from torchrec import KeyedJaggedTensor

    names = [*(pair.feature for pair in pairs), *(name.removeprefix(_VALUE) for name in batch.features[len(pairs) :])]
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    columns = sorted(first.values())
    ids, weights, lengths = _columns(batch.ids, batch.id_weights, batch.feature_lengths(), columns)
    keys = [names[c] for c in columns]
    return KeyedJaggedTensor(keys, ids, weights, lengths=lengths.reshape(-1), stride=batch.size)


def _not_looked_up(keys: Sequence[str], pairs: Sequence[Lookup]) -> tuple[str, ...]:
    known = {pair.feature for pair in pairs}
    return tuple(key for key in keys if key not in known)


def _columns(ids: Tensor, weights: Tensor | None, lengths: Tensor, columns: Sequence[int]):
    """Ids [n], weights [n] and lengths [F, B] of some features; views where they are the first ones."""
    first = columns == list(range(len(columns)))
    if first and len(columns) == len(lengths):
        return ids, weights, lengths
    ends = [0, *torch.cumsum(lengths.sum(dim=1), 0).tolist()]
    if first:
        end = ends[len(columns)]
        return ids[:end], None if weights is None else weights[:end], lengths[: len(columns)]
    runs = [slice(ends[c], ends[c + 1]) for c in columns]
    return _join(ids, runs), None if weights is None else _join(weights, runs), lengths[torch.tensor(columns)]


def _check(kjt: KeyedJaggedTensor, pairs: Sequence[Lookup], weighted: bool) -> None:
    keys = kjt.keys()
    if missing := [f"{pair.feature} (table {pair.table})" for pair in pairs if pair.feature not in keys]:
        raise UserError(f"the KeyedJaggedTensor lacks {', '.join(missing)}; it has {', '.join(keys) or 'no key'}")
    if kjt.variable_stride_per_key() or kjt.inverse_indices_or_none() is not None:
        raise UserError("the batch size varies by feature; give every feature the same number of bags")
    if weighted and kjt.weights_or_none() is None:
        raise UserError("is_weighted=True, but the KeyedJaggedTensor has no weights; give it weights=")
    if kjt.values().is_floating_point():
        raise UserError(f"ids are {kjt.values().dtype}; make them int64")


def _join(values: Tensor, runs: Sequence[slice]) -> Tensor:
    return torch.cat([values[run] for run in runs])
