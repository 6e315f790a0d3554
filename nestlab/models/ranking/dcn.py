"""DCN-V2 (Wang et al., 2021, arXiv 2008.13535): layers of explicit crosses beside an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.base import DenseOutput
from nestlab.models.dlrm import initialise, mlp
from nestlab.models.ranking.din import binary_output
from nestlab.models.ranking.inputs import inputs_of


class DCNv2(nn.Module):
    """A probability a sample, predictions [B]; crosses and MLP side by side, as in the paper's parallel form.

    Args:
        dense_in: number of dense values.
        features: each pooled to a vector of `dim`.
        dim: of a vector.
        crosses: layers x₀ ⊙ (W·x + b) + x.
        rank: of W, as a product of two matrices; None: W is whole.
        hidden: widths of the MLP.
        seed: of all weights.
    """

    def __init__(
        self,
        dense_in: int,
        features: Sequence[str],
        dim: int,
        *,
        crosses: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (128, 64),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.features = tuple(features)
        width = dense_in + len(self.features) * dim
        self.crosses = nn.ModuleList(_matrix(width, rank) for _ in range(crosses))
        self.deep = mlp([width, *hidden], last_relu=True)
        self.out = nn.Linear(width + hidden[-1], 1)
        initialise(self, seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        first = inputs_of(batch, embedded, self.features, self.out.weight)
        joined = torch.cat([self._crossed(first), self.deep(first)], dim=1)
        return binary_output(self.out(joined).squeeze(1), batch)

    def _crossed(self, first: Tensor) -> Tensor:
        x = first
        for cross in self.crosses:
            x = first * cross(x) + x
        return x


def _matrix(width: int, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank), nn.Linear(rank, width))
