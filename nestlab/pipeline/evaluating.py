"""Predictions for held-out data: look-ups that change nothing, on one rank or on all together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import TableConfig, embed
from nestlab.embedding.keyset import int64_array
from nestlab.errors import UserError
from nestlab.exchange import RoutedBatch
from nestlab.pipeline.rows import gather_samples
from nestlab.pipeline.step import TrainStep
from nestlab.pipeline.turns import TablesInFlight


def predict(step: TrainStep, loader: Iterable[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n] and predictions of all ranks, [n] or, of k > 1 a sample, [n, k], float32; dropout is off."""
    dense = step.model.dense
    was_training = dense.training
    dense.eval()
    try:
        pairs = list(_everyones(step, iter(loader)))
    finally:
        dense.train(was_training)
    labels, predictions = zip(*pairs, strict=True) if pairs else ((), ())
    return _joined(labels), _joined(predictions)


def look_up(step: TrainStep, table: str, ids: Tensor | np.ndarray) -> Tensor:
    """[n, dim]: the row of each id [n] of a table, on the step's device; a collective, each rank with its own ids."""
    config = _config_of(step, table)
    feature = config.features[0]
    batch = _one_id_each(step, feature, torch.from_numpy(int64_array(ids)))
    routed, rows = step.rows.look(batch, True, step.device)
    tables = step.tables.look(batch, True) if step.tables is not None else None
    embedded = embed(rows, routed.parts[0], batch.size)
    if step.tables is not None:
        step.tables.add(embedded, batch.to(step.device), step.tables.leaves(tables, [batch], 0))
    rows_of_it = embedded.sequence(feature)[0] if config.pooling == "none" else embedded.pooled(feature)
    return rows_of_it.detach()


def _config_of(step: TrainStep, table: str) -> TableConfig:
    """
    Raises:
        UserError: there is no such table.
    """
    layout = step.model.embedding.layout
    configs = [*(each for group in layout.groups for each in group.tables), *layout.whole]
    for config in configs:
        if config.name == table:
            return config
    raise UserError(f"no table is called '{table}'; there are {', '.join(config.name for config in configs)}")


def _one_id_each(step: TrainStep, feature: str, ids: Tensor) -> Batch:
    """A batch of as many samples as ids, each with one id of `feature` and none of the others."""
    features = step.model.embedding.layout.features
    lengths = torch.zeros(len(features), ids.numel(), dtype=torch.int64)
    lengths[features.index(feature)] = 1
    nothing = torch.zeros(ids.numel(), 0)
    return Batch(nothing, features, ids, lengths.reshape(-1), torch.zeros(ids.numel()))


def _everyones(step: TrainStep, batches: Iterator[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Labels and predictions, batch by batch, rank by rank, until no rank has any."""
    while True:
        batch = next(batches, step.filler)
        routed, rows = step.rows.look(batch, batch is not step.filler, step.device)
        if not routed.present:
            return
        tables = step.tables.look(batch, batch is not step.filler) if step.tables is not None else None
        own = _own(step, batch, routed, rows, tables)
        columns = [each.float() if each.dim() > 1 else each.float().unsqueeze(1) for each in own]
        both = gather_samples(step.transport, torch.cat(columns, dim=1))
        yield both[:, 0], both[:, 1:].squeeze(1)


def _own(
    step: TrainStep, batch: Batch, routed: RoutedBatch, rows: list[Tensor], tables: TablesInFlight | None
) -> tuple[Tensor, Tensor]:
    if batch is step.filler:
        return batch.labels, batch.labels.new_empty(0, 0)  # it does not know how many predictions a sample has
    inputs = batch.to(step.device)
    embedded = embed(rows, routed.parts[0], batch.size)
    if step.tables is not None:
        step.tables.add(embedded, inputs, step.tables.leaves(tables, [inputs], 0))
    output = step.dense(inputs, embedded)
    return inputs.labels, output.predictions


def _joined(pieces: Iterable[Tensor]) -> np.ndarray:
    pieces = [piece.float().cpu() for piece in pieces]
    return torch.cat(pieces).numpy() if pieces else np.empty(0, np.float32)
