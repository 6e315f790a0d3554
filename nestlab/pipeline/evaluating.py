"""Predictions for held-out data: look-ups that change nothing, on one rank or on all together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import embed
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
    output = step.model.dense(inputs, embedded)
    return inputs.labels, output.predictions


def _joined(pieces: Iterable[Tensor]) -> np.ndarray:
    pieces = [piece.float().cpu() for piece in pieces]
    return torch.cat(pieces).numpy() if pieces else np.empty(0, np.float32)
