"""A small training that leans on everything a checkpoint must hold: dropout, running statistics, Adam on both sides."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from killed_writes import Killed
from torch import nn

from nestlab.batch import Batch
from nestlab.data import Loader
from nestlab.data.loader import Collator
from nestlab.embedding import EmbeddingStore, LazyAdam, TableConfig, Tiers
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import DenseOutput, RecModel
from nestlab.pipeline import Inline, Pipeline
from nestlab.techniques import Techniques
from nestlab.training import Checkpoints, FitConfig, History, Saving, Trained, fit, restore

ROWS, SIZE, DIM = 150, 16, 4
FEATURES = ("a", "b")


class Noisy(nn.Module):
    """Dropout (the random generator), batch normalisation (buffers) and two linear layers over pooled vectors."""

    def __init__(self, dropout: float = 0.3, norm: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.first = nn.Linear(1 + len(FEATURES) * DIM, 8, dtype=dtype)
        self.norm = nn.BatchNorm1d(8, dtype=dtype) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(8, 1, dtype=dtype)
        with torch.no_grad():
            for parameter in (*self.first.parameters(), *self.last.parameters()):
                parameter.normal_(0.0, 0.3, generator=generator)

    def forward(self, batch, embedded) -> DenseOutput:
        vectors = embedded.stack(FEATURES).flatten(1)
        inputs = torch.cat([batch.dense.to(self.first.weight.dtype), vectors], dim=1)
        logits = self.last(self.drop(torch.relu(self.norm(self.first(inputs))))).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.to(logits.dtype), reduction="none")
        return DenseOutput(losses, torch.sigmoid(logits.detach()))


def table() -> pa.Table:
    """ROWS rows: skewed ids, negative and 64-bit ones among them, some missing."""
    rng = np.random.default_rng(3)
    columns = {"d": pa.array(rng.integers(0, 50, ROWS))}
    for name in FEATURES:
        ids = (rng.zipf(1.4, ROWS) % 40) * (2**40 + 1) - 7
        columns[name] = pa.array(ids, mask=rng.random(ROWS) < 0.1)
    columns["label"] = pa.array(rng.integers(0, 2, ROWS).astype(np.int8))
    return pa.table(columns)


class Training:
    """One process' worth of it: as `nestlab train` puts it together."""

    def __init__(
        self,
        folder: Path | None = None,
        techniques: str = "",
        executor: object = None,
        *,
        transport: Transport | None = None,
        dense: Callable[[], nn.Module] = Noisy,
        dtype: torch.dtype = torch.float32,
        restart: bool = False,
        killed_at_load: int | None = None,
    ) -> None:
        """`killed_at_load`: the process is killed when it loads this batch, from 0, of those it loads."""
        transport = transport or LocalTransport()
        flags, mesh = Techniques.parse(techniques), transport.mesh
        tables = [TableConfig(name, DIM) for name in FEATURES]
        store = EmbeddingStore(tables, LazyAdam(lr=0.05), tiers=Tiers.of(flags), dtype=dtype)
        self.model = RecModel(store, dense())
        self.optimizer = torch.optim.Adam(self.model.dense.parameters(), lr=0.01)
        self.trained = Trained(self.model, self.optimizer, transport)
        if not restart:
            torch.manual_seed(100 + mesh.rank)
        begin = restore(folder, self.trained, {"seed": 0}) if restart else None
        checkpoints = Checkpoints(folder, self.trained, 3, 3, {"seed": 0}) if folder else None
        self.saving = Saving(checkpoints, begin)
        self.pipeline = Pipeline(self.model, self.optimizer, flags, executor=executor or Inline(), transport=transport)
        collate = _counted(Collator(("d",), FEATURES), killed_at_load)
        self.train = Loader(table(), collate, (0, 120), SIZE, shuffle=True, seed=1).slice(mesh.rank, mesh.world_size)
        self.heldout = Loader(table(), Collator(("d",), FEATURES), (120, ROWS), SIZE).slice(mesh.rank, mesh.world_size)

    def fit(self, steps: int) -> History:
        return fit(
            self.pipeline, self.train, self.heldout, FitConfig(max_steps=steps, evaluations=3), saving=self.saving
        )

    def everything(self) -> dict[str, np.ndarray]:
        """All that training depends on, tables in a canonical order."""
        found = {f"dense.{name}": value.numpy() for name, value in self.model.dense.state_dict().items()}
        for number, values in enumerate(self.optimizer.state_dict()["state"].values()):
            found |= {f"adam.{number}.{name}": np.asarray(value) for name, value in values.items()}
        for name in FEATURES:
            found |= {f"{name}.{key}": value.numpy() for key, value in self.model.embedding.export(name).items()}
        found["rng"] = torch.get_rng_state().numpy()
        found["counts"] = np.array([self.model.embedding.last_step, self.model.embedding.counters.batches])
        return {name: value.copy() for name, value in found.items()}


def _counted(collate: Collator, last: int | None) -> Callable[[pa.Table], Batch]:
    loads = count()

    def collated(rows: pa.Table) -> Batch:
        if next(loads) == last:
            raise Killed("while it loads")
        return collate(rows)

    return collated


def curve(history: History) -> tuple:
    """What two equal trainings share of their histories."""
    return history.losses, [sorted(look.items()) for look in history.evaluations], history.samples


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes(), name
