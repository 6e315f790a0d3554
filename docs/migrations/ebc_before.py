"""Will this user click on this item? An EmbeddingBagCollection and a small network, in torchrec. Synthetic clicks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.optim import RowWiseAdagrad

USERS, ITEMS, BATCH, STEPS = 2_000, 5_000, 128, 60

TABLES = [
    EmbeddingBagConfig(name="user", embedding_dim=16, num_embeddings=USERS, feature_names=["user"]),
    EmbeddingBagConfig(
        name="item",
        embedding_dim=16,
        num_embeddings=ITEMS,
        feature_names=["candidate", "history"],
        pooling=PoolingType.MEAN,
    ),
]


class Clicks:
    """Users like items of their own parity; popular ids come often."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def ids(self, count: int, bound: int) -> torch.Tensor:
        return (bound * torch.rand(count, generator=self.generator) ** 3).long()

    def batch(self) -> tuple[KeyedJaggedTensor, torch.Tensor]:
        users, candidates = self.ids(BATCH, USERS), self.ids(BATCH, ITEMS)
        lengths = torch.randint(0, 8, (BATCH,), generator=self.generator)
        history = 2 * self.ids(int(lengths.sum()), ITEMS // 2) + users.repeat_interleave(lengths) % 2
        one_each = torch.ones(BATCH, dtype=torch.int64)
        features = KeyedJaggedTensor(
            keys=["user", "candidate", "history"],
            values=torch.cat([users, candidates, history]),
            lengths=torch.cat([one_each, one_each, lengths]),
        )
        return features, (users % 2 == candidates % 2).float()


class Ranker(nn.Module):
    def __init__(self, ebc: nn.Module) -> None:
        super().__init__()
        self.ebc = ebc
        self.mlp = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.mlp(self.ebc(features).values()).squeeze(1)


def train() -> list[float]:
    """The loss of each step, and of held-out clicks at the end."""
    torch.manual_seed(0)
    ebc = EmbeddingBagCollection(tables=TABLES)
    model = Ranker(ebc)
    apply_optimizer_in_backward(RowWiseAdagrad, ebc.parameters(), {"lr": 0.25, "eps": 1e-8})
    optimizer = torch.optim.Adam(model.mlp.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    clicks, losses = Clicks(seed=1), []
    for _ in range(STEPS):
        features, labels = clicks.batch()
        loss = loss_of(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        features, labels = clicks.batch()
        losses.append(loss_of(model(features), labels).item())
    return losses


if __name__ == "__main__":
    for number, loss in enumerate(train(), 1):
        print(number, loss)
