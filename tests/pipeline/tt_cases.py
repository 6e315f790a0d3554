"""A tiny model with tables of both kinds, row and tensor train: what tests of both run, on one rank and on two."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from unittest.mock import patch

import torch
from rank_cases import executor_of, global_batches, slices, tiers_of
from tiny import DIM, FEATURES

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
from nestlab.embedding.tensor_train import TensorTrain
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Clipped, Pipeline, Schedule, tensor_trains
from nestlab.techniques import Techniques

IDS = torch.arange(-40, 40) * (2**40 + 1)  # more than any batch of `make_batches` has


@dataclass(frozen=True)
class Case:
    """One training; `kinds` say which of the tables of user, item and tag are tensor trains."""

    techniques: str = ""
    executor: str = "inline"
    optimizer: str = "adagrad"
    dtype: torch.dtype = torch.float32
    steps: int = 12
    size: int = 14
    seed: int = 0
    clip: float | None = None
    kinds: str = "rtt"
    schedule: Schedule | None = None
    whole: bool = False
    hot: int = 0

    @property
    def flags(self) -> Techniques:
        return Techniques.parse(f"table_kind=tt,{self.techniques}".rstrip(","))


def tt_model(case: Case, batches: Sequence[Batch]) -> RecModel:
    hot = {"hot_rows": case.hot, "hot_every": 2}
    trains = [
        TensorTrain(rows=60, rank=3, **hot),
        TensorTrain(rows=90, cores=2, rank=2),
        TensorTrain(rows=200, rank=(2, 3)),
    ]
    tables = [
        TableConfig(f"{f}s", DIM, (f,), pooling="mean" if f == "item" else "sum", tensor_train=t if k == "t" else None)
        for f, t, k in zip(FEATURES, trains, case.kinds, strict=True)
    ]
    tiers = tiers_of(case.flags, batches)
    store = EmbeddingStore(tables, optimizer(case.optimizer, lr=0.1), seed=3, dtype=case.dtype, tiers=tiers)
    return RecModel(store, DLRM(3, FEATURES, DIM, bottom=(8,), top=(8,), seed=5).to(case.dtype))


def make(case: Case, transport: Transport, batches: Sequence[Batch]) -> tuple[RecModel, Pipeline]:
    model = tt_model(case, batches)
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    pipeline = Pipeline(
        model,
        Clipped(adam, case.clip) if case.clip else adam,
        case.flags,
        schedule=case.schedule,
        executor=executor_of(case.executor),
        transport=transport,
    )
    return model, pipeline


def learn(transport: Transport, case: Case) -> dict[str, torch.Tensor]:
    """Trains this rank's slices; its own cores, the dense part, losses and predictions for held-out data, by name."""
    batches, mesh = global_batches(case), transport.mesh
    model, pipeline = make(case, transport, batches)
    losses = [output.loss for output in pipeline.run(slices(batches, mesh.rank, mesh.world_size))]
    _, predicted = pipeline.evaluate(slices(batches[:3], mesh.rank, mesh.world_size))
    return {
        **learnt(model),
        "dense.losses": torch.stack(losses),
        "dense.predicted": torch.from_numpy(predicted).sort().values,  # the order of samples is the ranks'
    }


def train_in_turns(transport: Transport, case: Case) -> dict[str, torch.Tensor]:
    """All tables on rank 0 at first; once they have moved, another pipeline goes on with them."""
    batches, mesh = global_batches(case), transport.mesh
    with patch.object(tensor_trains, "lpt", lambda costs, ranks: (0,) * len(costs)):
        model, pipeline = make(case, transport, batches)
        list(pipeline.run(slices(batches, mesh.rank, mesh.world_size)))
    assert model.embedding.whole.owners[0] != (0,) * 3
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    again = Pipeline(model, adam, Techniques(table_kind="tt"), transport=transport)
    list(again.run(slices(batches, mesh.rank, mesh.world_size)))
    return learnt(model)


def break_rebalance(transport: Transport, case: Case) -> str:
    """Rank 1 fails while tables would move; how it ended on each rank."""
    batches, mesh = global_batches(case), transport.mesh
    with closing(CollectiveTransport.connect(timeout_s=30.0)) as mine:
        _, pipeline = make(case, mine, batches)
        if mesh.rank == 1:
            pipeline._step.tables.loads.proposal = lambda: 1 / 0
        start = time.monotonic()
        try:
            list(pipeline.run(slices(batches, mesh.rank, mesh.world_size)))
        except Exception as error:
            assert time.monotonic() - start < 20
            return f"{type(error).__name__}: {error}"
    return "nothing"


def learn_unevenly(transport: Transport, case: Case) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    """As `learn`, beginning with all tables on rank 0; what was learnt, and the owners at the end."""
    with patch.object(tensor_trains, "lpt", lambda costs, ranks: (0,) * len(costs)):
        batches, mesh = global_batches(case), transport.mesh
        model, pipeline = make(case, transport, batches)
        losses = [output.loss for output in pipeline.run(slices(batches, mesh.rank, mesh.world_size))]
        _, predicted = pipeline.evaluate(slices(batches[:3], mesh.rank, mesh.world_size))
    same = {"dense.losses": torch.stack(losses), "dense.predicted": torch.from_numpy(predicted).sort().values}
    return {**learnt(model), **same}, pipeline._step.tables.placement.owner


def learnt(model: RecModel) -> dict[str, torch.Tensor]:
    found = {}
    for table in model.embedding.whole.own.values():
        found |= {f"{table.config.name}.{k}": r.clone() for k, r in enumerate(table.cores.records)}
    for group in model.embedding.groups:
        for table in group.tables:
            found |= {f"{table.name}.{n}": torch.as_tensor(v) for n, v in model.embedding.export(table.name).items()}
    return found | {f"dense.{name}": value.detach().clone() for name, value in model.dense.state_dict().items()}


def joined(found: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What all ranks have, as one: a whole table is one rank's, or the same on all; rows are joined by id."""
    one: dict[str, torch.Tensor] = {}
    for each in found:
        for name, value in each.items():
            table = name.partition(".")[0]
            if f"{table}.ids" in each:
                continue
            assert name not in one or torch.equal(one[name], value), f"{name} differs between ranks"
            one[name] = value
    rows = {name.partition(".")[0] for name in found[0] if name.endswith(".ids")}
    for table in sorted(rows):
        order = torch.argsort(torch.cat([each[f"{table}.ids"] for each in found]))
        for name in ("ids", "weight", "state"):
            one[f"{table}.{name}"] = torch.cat([each[f"{table}.{name}"] for each in found])[order]
    return one


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[n].double() - other[n].double()).abs().max()) for n in one if one[n].numel())
