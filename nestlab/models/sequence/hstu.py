"""HSTU (Zhai et al., 2024, arXiv 2402.17152): pointwise attention, gated, with a bias of places and times."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.models.sequence.attention import Pointwise, Window, attend
from nestlab.models.sequence.encoder import Encoder, RelativeBias, Size


class HSTU(Encoder):
    """Layers of one projection to gate, values, queries and keys; no feed-forward part."""

    def layer(self, size: Size) -> nn.Module:
        return HSTULayer(size)

    def event_flops(self) -> int:
        inner = self.size.heads * self.size.width
        return 2 * self.size.dim * 4 * inner + 2 * inner * self.size.dim

    def pair_flops(self) -> int:
        return 4 * self.size.heads * self.size.width


class HSTULayer(nn.Module):
    """x + W₂(norm(A·V) ⊙ U), U, V, Q, K = SiLU(W₁·norm(x)), A = SiLU(Q·Kᵀ + bias) / longest, causal."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner = size.heads * size.width
        self.size = size
        self.norm, self.norm_attended = nn.LayerNorm(size.dim), nn.LayerNorm(inner)
        self.project = nn.Linear(size.dim, 4 * inner)
        self.out = nn.Linear(inner, size.dim)
        self.bias = RelativeBias(size.longest)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, window: Window) -> Tensor:
        gate, values, queries, keys = F.silu(self.project(self.norm(x))).chunk(4, dim=-1)
        bias = self.bias.place, self.bias.time
        attended = attend(Pointwise, window, values, queries, keys, *bias, heads=self.size.heads) / self.size.longest
        return x + self.dropout(self.out(self.norm_attended(attended) * gate))
