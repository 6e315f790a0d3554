"""How far a trained model is from another one, over all its rows and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nestlab.exchange import Channel
from nestlab.experiments.nestpipe.training import Bench, Trained
from nestlab.experiments.ranks import of_all, rows_of_all


@dataclass(frozen=True)
class Whole:
    """What a training ended with, all ranks' rows together, on every rank.

    Attributes:
        records: by table [n, dim + s], weight and state of id i in row i.
        dim: weights a record.
        dense: parameters by name.
    """

    records: dict[str, Tensor]
    dim: int
    dense: dict[str, Tensor]


def whole(bench: Bench, trained: Trained) -> Whole:
    """All ranks call it, with nothing in flight."""
    store, dense = trained.pipeline.model.embedding, trained.pipeline.model.dense
    records = {}
    for name, count in bench.stream.rows.items():
        own = store.export(name)
        values = torch.cat([own["weight"], own["state"]], dim=1)
        ids = rows_of_all(bench.transport, own["ids"].unsqueeze(1)).squeeze(1)
        every = rows_of_all(bench.transport, values)
        records[name] = every.new_zeros(count, every.shape[1]).index_copy_(0, ids, every)
    return Whole(records, store.groups[0].dim, _parameters(dense))


@dataclass(frozen=True)
class Distance:
    """Of two trained models, over all ranks.

    Attributes:
        largest: of any weight of a row or of the dense part.
        mean: of the rows' weights.
        equal: every bit is the same, optimizer states too.
    """

    largest: float
    mean: float
    equal: bool


def distance(one: Whole, other: Whole) -> Distance:
    pairs = [(one.records[name], other.records[name]) for name in one.records]
    rows = [(a[:, : one.dim].double() - b[:, : one.dim].double()).abs() for a, b in pairs]
    dense = [(value - other.dense[name]).abs().max() for name, value in one.dense.items()]
    same = all(map(torch.equal, *zip(*pairs, strict=True)))
    same &= all(torch.equal(value, other.dense[name]) for name, value in one.dense.items())
    count = sum(each.numel() for each in rows)
    mean = sum(float(each.sum()) for each in rows) / count
    return Distance(max(float(each.max()) for each in [*rows, *dense]), mean, same)


def largest_of_part(bench: Bench, weights: dict[str, tuple[int, Tensor]], dense: nn.Module, other: Whole) -> float:
    """The largest difference of weights [n, dim] that lie here, by table with their first row; over all ranks."""
    parts = [
        (values - other.records[name][first : first + len(values), : other.dim]).abs().max()
        for name, (first, values) in weights.items()
        if len(values)
    ]
    parts += [(value - other.dense[name]).abs().max() for name, value in _parameters(dense).items()]
    return float(np.max(of_all(bench.transport, {"largest": float(max(parts))})["largest"]))


def replicas_agree(bench: Bench, trained: Trained) -> dict[str, bool]:
    """Whether weights and states of all replicas are the same bits; each rank holds a replica's shard."""
    assert bench.grouped is not None
    store, same = trained.pipeline.model.embedding, {"weight": True, "state": True}
    for name in bench.stream.rows:
        own = store.export(name)
        for what in same:
            every = bench.grouped.all_gather(Channel.REPLICAS, own[what])
            same[what] &= all(torch.equal(every[0], other) for other in every[1:])
    return {what: bool(np.min(of_all(bench.transport, {what: float(held)})[what])) for what, held in same.items()}


def _parameters(dense: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu() for name, value in dense.named_parameters()}
