"""What the pipeline's ladder trains: tables of four costs, listed in no order of cost, and a dense part beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded, EmbeddingStore, TableConfig, optimizer
from nestlab.embedding.tensor_train import TensorTrain
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.ecorec.streams import RANKED, drawn
from nestlab.models import DenseOutput, RecModel
from nestlab.models.dlrm import initialise, mlp

LR = 0.05
_DENSE, _HIDDEN = 4, 32
RANKS = (0.25, 0.5, 1.0, 2.0)  # of the tables, in ranks of the settings: what a row costs grows with the square
DATA = "ids by a power law, the most frequent first (SYNTHETIC)"


class Concatenated(nn.Module):
    """An MLP over the vectors of all features side by side, the source's interaction; small beside the tables."""

    def __init__(self, features: tuple[str, ...], dim: int, seed: int) -> None:
        super().__init__()
        self.features = features
        self.layers = mlp([_DENSE + len(features) * dim, _HIDDEN, 1], last_relu=False)
        initialise(self, seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        x_bd = torch.cat([batch.dense, embedded.stack(self.features).flatten(1)], dim=1)
        logits_b = self.layers(x_bd).squeeze(1)
        losses_b = F.binary_cross_entropy_with_logits(logits_b, batch.labels, reduction="none")
        return DenseOutput(losses_b, torch.sigmoid(logits_b.detach()))


def names(settings: Settings) -> tuple[str, ...]:
    return tuple(f"t{number}" for number in range(settings.ladder_tables * settings.world_size))


def table_ranks(settings: Settings) -> list[int]:
    """Of each table. As many in a row as there are ranks are alike, one for each of them; their kinds are shuffled."""
    kinds = np.resize([max(1, round(share * settings.rank)) for share in RANKS], settings.ladder_tables)
    np.random.default_rng(settings.seed).shuffle(kinds)
    return np.repeat(kinds, settings.world_size).tolist()


def build_model(settings: Settings) -> RecModel:
    """Every rank makes all tables; a pipeline keeps its own."""
    features = names(settings)
    tables = [
        TableConfig(name, settings.dim, tensor_train=TensorTrain(rows=settings.mixed_rows, rank=rank, ids="range"))
        for name, rank in zip(features, table_ranks(settings), strict=True)
    ]
    store = EmbeddingStore(tables, optimizer("sgd", lr=LR), seed=settings.seed)
    return RecModel(store, Concatenated(features, settings.dim, settings.seed))


def batch(settings: Settings, rank: int, number: int) -> Batch:
    """Batch `number` of a rank, the same in every run: one id a sample and table."""
    features, size = names(settings), settings.ladder_batch
    rng = np.random.default_rng([settings.seed, rank, number])
    ids = drawn(RANKED, size * len(features), settings.mixed_rows, int(rng.integers(1 << 62)))
    return Batch(
        dense=torch.from_numpy(rng.standard_normal((size, _DENSE), dtype=np.float32)),
        features=features,
        ids=torch.from_numpy(ids),
        lengths=torch.ones(size * len(features), dtype=torch.int64),
        labels=torch.from_numpy((rng.random(size) < 0.3).astype(np.float32)),
    )
