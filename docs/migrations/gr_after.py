"""What does this user watch next? An EmbeddingCollection and a small HSTU, in torchrec's train pipeline.

Synthetic histories: jagged, with actions, times in milliseconds, and negatives that the data loader draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor

from nestlab import Techniques
from nestlab.embedding import RowWiseAdagrad, Tiers
from nestlab.interop.torchrec import NestPipeTrainPipeline, TieredEmbeddingCollection

ITEMS, ACTIONS, DIM, LONGEST, NEGATIVES, BATCH, STEPS = 3_000, 8, 32, 24, 16, 48, 40

TABLES = [
    EmbeddingConfig(
        name="item",
        embedding_dim=DIM,
        num_embeddings=ITEMS,
        feature_names=["item", "target", "negative"],
    ),
    EmbeddingConfig(name="action", embedding_dim=DIM, num_embeddings=ACTIONS, feature_names=["action"]),
]


class Histories:
    """Users watch on within a series of ten items, popular series often; some have no history yet."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def below(self, bound: int, *size: int, skew: float = 1.0) -> Tensor:
        return (bound * torch.rand(*size, generator=self.generator) ** skew).long()

    def batches(self, count: int) -> Iterator[KeyedJaggedTensor]:
        for _ in range(count):
            yield self.batch()

    def batch(self) -> KeyedJaggedTensor:
        lengths = self.below(LONGEST + 1, BATCH)
        watched = 10 * self.below(ITEMS // 10, BATCH, 1, skew=3.0) + self.below(4, BATCH, LONGEST + 1).cumsum(1) % 10
        time = 1_650_000_000_000 + self.below(10_000_000, BATCH, LONGEST, skew=4.0).cumsum(1)
        there = torch.arange(LONGEST) < lengths[:, None]
        features = {
            "item": watched[:, :-1][there],
            "target": watched[:, 1:][there],
            "action": self.below(ACTIONS, int(lengths.sum())),
            "time": time[there],  # milliseconds: raw numbers, which no table looks up
            "negative": self.below(ITEMS, BATCH * NEGATIVES),
        }
        each = [*[lengths] * 4, torch.full_like(lengths, NEGATIVES)]
        return KeyedJaggedTensor(list(features), torch.cat(list(features.values())), lengths=torch.cat(each))


class Layer(nn.Module):
    """Pointwise attention over earlier events, biased by their distance in places and time, and gated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_attended = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.project, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(DIM, DIM)
        self.by_place = nn.Parameter(0.02 * torch.randn(LONGEST))
        self.by_time = nn.Parameter(0.02 * torch.randn(64))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        gate, values, queries, keys = F.silu(self.project(self.norm(x))).chunk(4, dim=-1)
        place = torch.arange(LONGEST)
        apart = (time[:, :, None] - time[:, None, :]).clamp(min=1).float().log2().long()
        bias = self.by_place[(place[:, None] - place).clamp(min=0)] + self.by_time[apart]
        weights = F.silu(queries @ keys.mT + bias).tril() / LONGEST
        return x + self.out(self.norm_attended(weights @ values) * gate)


class Recommender(nn.Module):
    """Sampled softmax at every event: the item that came next against the user's negatives."""

    def __init__(self, ec: nn.Module) -> None:
        super().__init__()
        self.ec = ec
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        rows, time = self.ec(features), features["time"].to_padded_dense(LONGEST)
        x = rows["item"].to_padded_dense(LONGEST) + rows["action"].to_padded_dense(LONGEST)
        for layer in self.layers:
            x = layer(x, time)
        state = F.normalize(x, dim=-1)
        target = F.normalize(rows["target"].to_padded_dense(LONGEST), dim=-1)
        negative = F.normalize(rows["negative"].values().view(len(x), NEGATIVES, DIM), dim=-1)
        ids, wrong_ids = features["target"].to_padded_dense(LONGEST), features["negative"].values().view(len(x), 1, -1)
        wrong = (state @ negative.mT).masked_fill(ids[:, :, None] == wrong_ids, -torch.inf)
        scores = torch.cat([(state * target).sum(-1, keepdim=True), wrong], dim=-1) / 0.1
        events = torch.arange(LONGEST) < features["item"].lengths()[:, None]
        loss = -scores.log_softmax(dim=-1)[events][:, 0].mean()
        return loss, loss.detach()


def train() -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    start = EmbeddingCollection(tables=TABLES).state_dict()  # a checkpoint, as a rule
    flags = Techniques(device_tier="dual_buffer", pipeline_depth=4, micro_batches=4)
    ec = TieredEmbeddingCollection(TABLES, RowWiseAdagrad(lr=0.25, eps=1e-8), Tiers.of(flags))
    ec.load_state_dict(start)
    model = Recommender(ec)
    optimizer = torch.optim.Adam(model.layers.parameters(), lr=0.001)
    pipeline = NestPipeTrainPipeline(model, optimizer, torch.device("cpu"), flags, mean_over="target")
    iterator, losses = Histories(seed=1).batches(STEPS), []
    while True:
        try:
            losses.append(pipeline.progress(iterator).item())
        except StopIteration:
            return losses


if __name__ == "__main__":
    for number, loss in enumerate(train(), 1):
        print(number, loss)
