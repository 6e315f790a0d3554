"""A ranking model from a few choices, and the batches that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from nestlab.data.dataset import Dataset
from nestlab.data.kuairand_batches import ALL_ACTIONS
from nestlab.data.kuairand_format import ACTIONS
from nestlab.data.loader import Loader, check_order
from nestlab.embedding import EmbeddingStore, RowOptimizer, RowWiseAdagrad, TableConfig, Tiers
from nestlab.errors import UserError
from nestlab.models.base import RecModel
from nestlab.models.ranking.dcn import DCNv2
from nestlab.models.ranking.din import DIN, Inputs
from nestlab.models.ranking.interest import History
from nestlab.models.ranking.multitask import MultiTask
from nestlab.models.sequence.encoder import Size
from nestlab.models.sequence.hstu import HSTU

# Every row of KuaiRand's logs has every action: none is ever `UNDEFINED`.
TASKS: Mapping[str, int] = MappingProxyType(ACTIONS)  # bit by name, in the order of the heads
HISTORY = 50  # events before a sample, at most
VIDEOS = "video_id", "hist_video_id"  # of one table: candidate and events are of one space
EVENTS = History(("hist_video_id", "hist_action"))


@dataclass(frozen=True)
class Kind:
    """What a ranking model of a name reads and says.

    Attributes:
        title: for tables and plots.
        history: whether it reads the user's events.
        tasks: whether it predicts all of TASKS; else the one label of a sample.
    """

    title: str
    history: bool = True
    tasks: bool = False


RANKING: Mapping[str, Kind] = MappingProxyType(
    {
        "dcnv2": Kind("DCN-V2", history=False),
        "din": Kind("DIN"),
        "multitask": Kind("multi-task, attention", tasks=True),
        "multitask_hstu": Kind("multi-task, HSTU", tasks=True),
    }
)


def ranking_model(
    name: str,
    dataset: Dataset,
    *,
    dim: int = 16,
    history: int = HISTORY,
    rows: RowOptimizer | None = None,
    tiers: Tiers | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> RecModel:
    """Over `ranking_batches` of the same name, data and history; all start weights come from `seed`.

    Args:
        name: of RANKING.
        dim: of every table and vector.
        history: the most events of a sample. An encoder has room for these and the candidate, and no more; attention
            (`din`, `multitask`) is a sum over events, which has no place in it and takes any number of them.
        rows: optimizer of all tables; None: row-wise Adagrad.
        dtype: of all weights and states.

    Raises:
        UserError: no model is called so, it needs histories that the data set has not, or a size is below 1.
    """
    tables = ranking_tables(name, dataset, dim)
    store = EmbeddingStore(tables, rows or RowWiseAdagrad(lr=0.05), seed=seed, dtype=dtype, tiers=tiers)
    return RecModel(store, _dense(name, dataset, dim, history, seed).to(dtype))


def ranking_tables(name: str, dataset: Dataset, dim: int) -> list[TableConfig]:
    """One a feature; with a history one for candidates and events alike, as rows, and one of actions.

    Raises:
        UserError: as `ranking_model`.
    """
    if not _kind(name, dataset).history:
        return [TableConfig(feature, dim) for feature in dataset.features]
    shared = VIDEOS[0]
    return [
        TableConfig(shared, dim, features=VIDEOS, pooling="none"),
        TableConfig("hist_action", dim, pooling="none"),
        *(TableConfig(feature, dim) for feature in dataset.features if feature != shared),
    ]


def ranking_batches(
    name: str, dataset: Dataset, split: str, batch_size: int, *, history: int = HISTORY, **order: Any
) -> Loader:
    """What the model of this name reads: with the user's events before each sample, labelled with a click or, for
    several tasks, with the bits of all actions.

    Args:
        split, batch_size: see `Dataset.batches`.
        history: the newest events before a sample, at most so many.
        order: shuffle, seed, drop_last, limit; see Loader.

    Raises:
        UserError: as `ranking_model`, or an unknown split or option.
    """
    kind = _kind(name, dataset)
    check_order(order, "ranking_batches", ("history",))
    if not kind.history:
        return dataset.batches(split, batch_size, **order)
    label = ALL_ACTIONS if kind.tasks else "is_click"
    return dataset.batches(split, batch_size, label=label, history=_at_least_one(history), **order)


def _kind(name: str, dataset: Dataset) -> Kind:
    if name not in RANKING:
        raise UserError(f"ranking model '{name}': choose one of {', '.join(RANKING)}")
    kind = RANKING[name]
    if kind.history and not hasattr(dataset, "sequence_features"):
        raise UserError(
            f"ranking model '{name}': '{dataset.info.id}' has no histories of users; take a KuaiRand data set, or dcnv2"
        )
    return kind


def _at_least_one(history: int) -> int:
    if history < 1:
        raise UserError(f"ranking model: history={history}: choose 1 or more events, or dcnv2, which reads none")
    return history


def _dense(name: str, dataset: Dataset, dim: int, history: int, seed: int) -> nn.Module:
    values = len(dataset.dense_names)
    if name == "dcnv2":
        return DCNv2(values, dataset.features, dim, rank=64, seed=seed)
    inputs = Inputs(values, tuple(each for each in dataset.features if each != VIDEOS[0]), dim)
    if name == "din":
        return DIN(inputs, history=EVENTS, seed=seed)
    longest = _at_least_one(history) + 1  # the candidate stands behind the events
    encoder = HSTU(Size(dim, longest=longest, seed=seed + 2)) if name == "multitask_hstu" else None
    return MultiTask(inputs, TASKS, encoder=encoder, history=EVENTS, seed=seed)
