"""What a model is trained on, what it is made of, and what judges it: one function a family of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from nestlab import data
from nestlab.data import Dataset, DatasetInfo, Loader
from nestlab.data.loader import array_of
from nestlab.data.reorder import ReorderOptions, reorder
from nestlab.data.sequences import SequenceOptions
from nestlab.embedding import EmbeddingStore, RowOptimizer, TableConfig, Tiers, optimizer
from nestlab.exchange import Mesh
from nestlab.models import DLRM, RecModel, sequence_model
from nestlab.models.ranking.building import TASKS, ranking_batches, ranking_model, ranking_tables
from nestlab.models.sequence import Size, sequence_tables
from nestlab.techniques import Techniques
from nestlab.training.facts import Facts
from nestlab.training.looks import ClickJudge, Judge, RetrievalJudge, TaskJudge
from nestlab.training.options import TrainOptions
from nestlab.training.retrieval import HELDOUT, RankingProtocol
from nestlab.training.tables import as_trains, tables_of, trains_of

CLICKS_A_LOOK, WINDOWS_A_LOOK = 2048, 512  # samples of a held-out batch, at least; no figure depends on it
USER = "user_id"
# As the accuracy study has it: an item that a user has seen hardly ever comes again in these logs.
RANKING_PROTOCOL = RankingProtocol(leave_out_seen=True)


@dataclass(frozen=True)
class Material:
    """Of one training.

    Attributes:
        info: of the data, as the model reads them.
        train: batches of all ranks.
        judge: of held-out data, with this rank's slice.
        tables, dense: the two parts of the model.
        protocol: what two runs must agree in, beside the data, before their figures are compared.
        heldout: how many samples are held out, and which.
        fixed: what no option decides and a continued training must share, as another version may have it otherwise.
    """

    info: DatasetInfo
    train: Loader
    judge: Judge
    tables: list[TableConfig]
    dense: nn.Module
    protocol: Mapping[str, str | int]
    heldout: str
    fixed: Facts = field(default_factory=dict)


def open_data(options: TrainOptions) -> Dataset:
    """The data set, read by the convention and its ids in the order asked for."""
    read_by = data.CriteoOptions(convention=options.convention) if options.named_convention else None
    dataset = data.open_dataset(
        options.dataset, options.data_root, rows=options.rows, seed=options.data_seed, options=read_by
    )
    return dataset.reordered(reorder(dataset, ReorderOptions(mode=options.reorder))) if options.reorder else dataset


def material(options: TrainOptions, dataset: Dataset, mesh: Mesh) -> Material:
    """Start weights and batches hang on the options' seed alone, not on ranks."""
    return _FAMILIES[options.choice.family](options, dataset, mesh)


def build_model(material: Material, options: TrainOptions, tiers: Tiers | None = None) -> RecModel:
    """Tables and dense part joined; ids of any value find rows."""
    store = EmbeddingStore(material.tables, row_optimizer(options), seed=options.seed, tiers=tiers)
    return RecModel(store, material.dense)


def row_optimizer(options: TrainOptions) -> RowOptimizer:
    """The tables' optimizer; row-wise Adagrad's state is scaled where replicas are averaged (arXiv 2508.03854)."""
    groups = Techniques.parse(options.techniques).replica_groups
    scaled = {"state_scale": float(groups)} if groups > 1 and options.optimizer == "rowwise_adagrad" else {}
    return optimizer(options.optimizer, lr=options.lr, **scaled)


def _clicks(options: TrainOptions, dataset: Dataset, mesh: Mesh) -> Material:
    if options.model == "dlrm":
        return _dlrm(options, dataset, mesh)
    train, heldout, tables, dense = _ranking(options, dataset)
    judge = ClickJudge(_own(heldout, mesh), _users(dataset))
    return Material(dataset.info, train, judge, tables, dense, *_of_rows(dataset))


def _dlrm(options: TrainOptions, dataset: Dataset, mesh: Mesh) -> Material:
    """A table a feature."""
    train = dataset.batches("train", options.batch_size, shuffle=options.shuffle, seed=options.seed)
    heldout = dataset.batches(HELDOUT, max(options.batch_size, CLICKS_A_LOOK))
    tables = tables_of(dataset, options.dim, Techniques.parse(options.techniques))
    dense = DLRM(len(dataset.dense_names), dataset.features, options.dim, seed=options.seed)
    judge = ClickJudge(_own(heldout, mesh), _users(dataset))
    return Material(dataset.info, train, judge, tables, dense, *_of_rows(dataset))


def _tasks(options: TrainOptions, dataset: Dataset, mesh: Mesh) -> Material:
    train, heldout, tables, dense = _ranking(options, dataset)
    judge = TaskJudge(_own(heldout, mesh), TASKS, _users(dataset))
    return Material(dataset.info, train, judge, tables, dense, *_of_rows(dataset))


def _ranking(options: TrainOptions, dataset: Dataset) -> tuple[Loader, Loader, list[TableConfig], nn.Module]:
    """Batches to train on and held-out ones, tables, and the dense part."""
    name, events = options.model, {"history": options.history} if options.choice.reads_histories else {}
    order = {"shuffle": options.shuffle, "seed": options.seed}
    train = ranking_batches(name, dataset, "train", options.batch_size, **events, **order)
    heldout = ranking_batches(name, dataset, HELDOUT, max(options.batch_size, CLICKS_A_LOOK), **events)
    tables = trains_of(dataset, ranking_tables(name, dataset, options.dim), Techniques.parse(options.techniques))
    dense = ranking_model(name, dataset, dim=options.dim, seed=options.seed, **events).dense
    return train, heldout, tables, dense


HEADS = 2  # of the attention of encoders


def _retrieval(options: TrainOptions, dataset: Dataset, mesh: Mesh) -> Material:
    """All windows of a user are trained on, and parts are borders in time; see `nestlab.data.sequences`."""
    given = {"history": options.history, "negatives": options.negatives, "seed": options.seed}
    sequences = dataset.sequences(SequenceOptions(split="time", windows="all", **given))
    train = sequences.batches("train", options.batch_size, shuffle=options.shuffle, seed=options.seed)
    judge = RetrievalJudge(sequences, HELDOUT, max(options.batch_size, WINDOWS_A_LOOK), RANKING_PROTOCOL)
    known, flags = {"item": len(sequences.items)}, Techniques.parse(options.techniques)
    tables = as_trains(sequence_tables(options.dim), known, flags)
    dense = sequence_model(
        options.model, sequences, Size(options.dim, options.blocks, heads=HEADS, seed=options.seed)
    ).dense
    protocol = judge.protocol.facts | {"split": "time", "heldout": sequences.samples(HELDOUT)}
    heldout = f"{sequences.samples(HELDOUT):,} windows, those whose next event is after the border in time"
    fixed = {"samples": sequences.info.convention, "heads": HEADS, "temperature": dense.temperature}
    return Material(sequences.info, train, judge, tables, dense, protocol, heldout, fixed)


def _users(dataset: Dataset) -> np.ndarray | None:
    """[n] int64: whose each held-out row is; None where the data have no users."""
    if USER not in dataset.table.column_names:
        return None
    first, end = dataset.rows(HELDOUT)
    return array_of(dataset.table.slice(first, end - first), USER).to_numpy()


def _of_rows(dataset: Dataset) -> tuple[dict[str, str | int], str]:
    """Protocol and words for rows of which the last are held out. One protocol for models of clicks and of several
    actions, whose figures of clicks compare; what has no users needs none beside the data."""
    first, end = dataset.rows(HELDOUT)
    grouped = {"split": "last rows", "heldout": end - first, "groups": USER}
    told = f"{end - first:,} rows, the last {1 - first / max(end, 1):.0%} of them"
    return grouped if USER in dataset.table.column_names else {}, told


def _own(batches: Loader, mesh: Mesh) -> Loader:
    return batches.slice(mesh.rank, mesh.world_size)


_FAMILIES = {"clicks": _clicks, "tasks": _tasks, "retrieval": _retrieval}
