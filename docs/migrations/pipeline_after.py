"""Will this user click on this item? torchrec's train pipeline over a small network. Synthetic clicks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.streamable import Pipelineable

from nestlab import Techniques
from nestlab.embedding import RowWiseAdagrad, Tiers
from nestlab.interop.torchrec import NestPipeTrainPipeline, TieredEmbeddingBagCollection

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


@dataclass
class Batch(Pipelineable):
    features: KeyedJaggedTensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.features.to(device, non_blocking), self.labels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.features.record_stream(stream)
        self.labels.record_stream(stream)


class Clicks:
    """Users like items of their own parity; popular ids come often."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def ids(self, count: int, bound: int) -> torch.Tensor:
        return (bound * torch.rand(count, generator=self.generator) ** 3).long()

    def batches(self, count: int) -> Iterator[Batch]:
        for _ in range(count):
            yield self.batch()

    def batch(self) -> Batch:
        users, candidates = self.ids(BATCH, USERS), self.ids(BATCH, ITEMS)
        lengths = torch.randint(0, 8, (BATCH,), generator=self.generator)
        history = 2 * self.ids(int(lengths.sum()), ITEMS // 2) + users.repeat_interleave(lengths) % 2
        one_each = torch.ones(BATCH, dtype=torch.int64)
        features = KeyedJaggedTensor(
            keys=["user", "candidate", "history"],
            values=torch.cat([users, candidates, history]),
            lengths=torch.cat([one_each, one_each, lengths]),
        )
        return Batch(features, (users % 2 == candidates % 2).float())


class Ranker(nn.Module):
    def __init__(self, ebc: nn.Module) -> None:
        super().__init__()
        self.ebc = ebc
        self.mlp = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.mlp(self.ebc(batch.features).values()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, loss.detach()


def train() -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    start = EmbeddingBagCollection(tables=TABLES).state_dict()  # a checkpoint, as a rule
    flags = Techniques(device_tier="dual_buffer", pipeline_depth=4, micro_batches=4)
    ebc = TieredEmbeddingBagCollection(TABLES, RowWiseAdagrad(lr=0.25, eps=1e-8), Tiers.of(flags))
    ebc.load_state_dict(start)
    model = Ranker(ebc)
    optimizer = torch.optim.Adam(model.mlp.parameters(), lr=0.01)
    pipeline = NestPipeTrainPipeline(model, optimizer, torch.device("cpu"), flags)
    iterator, losses = Clicks(seed=1).batches(STEPS), []
    while True:
        try:
            losses.append(pipeline.progress(iterator).item())
        except StopIteration:
            return losses


if __name__ == "__main__":
    for number, loss in enumerate(train(), 1):
        print(number, loss)
