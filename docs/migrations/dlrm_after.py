"""torchrec's DLRM, one optimizer with warm-up and decay, a checkpoint in the middle. Synthetic clicks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain

from nestlab.embedding import Adagrad, Tiers
from nestlab.interop.torchrec import TieredEmbeddingBagCollection

FEATURES = [f"cat_{i}" for i in range(8)]
ROWS, DIM, DENSE, BATCH, STEPS, LR = 3_000, 16, 13, 128, 60, 0.05

TABLES = [
    EmbeddingBagConfig(name=f"t_{name}", embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
    for name in FEATURES
]


def batches(seed: int):
    """Dense values, sparse ids with a few missing, and labels that depend on both."""
    generator = torch.Generator().manual_seed(seed)
    taste = torch.randn(len(FEATURES), ROWS, generator=generator)
    while True:
        dense = torch.randn(BATCH, DENSE, generator=generator)
        ids = (ROWS * torch.rand(len(FEATURES), BATCH, generator=generator) ** 3).long()
        present = torch.rand(len(FEATURES), BATCH, generator=generator) > 0.1
        score = (taste.gather(1, ids) * present).sum(0) / len(FEATURES) ** 0.5 + dense[:, 0]
        labels = (torch.rand(BATCH, generator=generator) < torch.sigmoid(2 * score)).float()
        yield dense, KeyedJaggedTensor(FEATURES, ids[present], lengths=present.long().reshape(-1)), labels


class Batch:
    """What DLRMTrain takes."""

    def __init__(self, dense: torch.Tensor, sparse: KeyedJaggedTensor, labels: torch.Tensor) -> None:
        self.dense_features, self.sparse_features, self.labels = dense, sparse, labels


def build() -> tuple[nn.Module, list]:
    torch.manual_seed(0)
    start = EmbeddingBagCollection(tables=TABLES).state_dict()
    ebc = TieredEmbeddingBagCollection(TABLES, Adagrad(lr=LR), Tiers("slot_cache", cache_slots=2000))
    ebc.load_state_dict(start)
    dlrm = DLRM(
        embedding_bag_collection=ebc,
        dense_in_features=DENSE,
        dense_arch_layer_sizes=[32, DIM],
        over_arch_layer_sizes=[32, 1],
    )
    model = DLRMTrain(dlrm)
    optimizers = [torch.optim.Adagrad(model.parameters(), lr=LR), ebc.fused_optimizer]
    return model, optimizers


def train() -> list[float]:
    """The loss of each step; half-way everything is saved, built anew and loaded."""
    model, optimizers = build()
    losses, source = [], batches(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            if step == STEPS // 2:
                path = Path(folder) / "checkpoint.pt"
                torch.save([model.state_dict(), *[o.state_dict() for o in optimizers]], path)
                model, optimizers = build()
                saved = torch.load(path, weights_only=True)
                for part, state in zip([model, *optimizers], saved, strict=True):
                    part.load_state_dict(state)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = LR * min(1.0, (step + 1) / 10) * 0.99**step
                optimizer.zero_grad()
            loss, _ = model(Batch(*next(source)))
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for number, loss in enumerate(train(), 1):
        print(number, loss)
