"""FuXi-α (Ye et al., 2025, arXiv 2502.03036): three channels of attention over the same values, then a gated FFN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.models.sequence.attention import ByPlace, ByTime, Pointwise, Window, attend
from nestlab.models.sequence.encoder import Encoder, RelativeBias, Size


class FuXi(Encoder):
    """Layers of two stages: attention by meaning, places and times, gated; and a SwiGLU feed-forward part."""

    def layer(self, size: Size) -> nn.Module:
        return FuXiLayer(size)

    def event_flops(self) -> int:
        inner, hidden = self.size.heads * self.size.width, _hidden(self.size)
        return 2 * self.size.dim * 6 * inner + 2 * 3 * inner * self.size.dim + 3 * 2 * self.size.dim * hidden

    def pair_flops(self) -> int:
        return 2 * 4 * self.size.heads * self.size.width  # queries by keys, and three channels by values


class FuXiLayer(nn.Module):
    """o = x + W₀(norm(channels) ⊙ U), then o + W₃(SiLU(W₁·norm(o)) ⊙ W₂·norm(o)); norms are root mean squares.

    The channels: SiLU(Q·Kᵀ) / longest, a number a distance of places, and one a bucket of time; each times V.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner, hidden = size.heads * size.width, _hidden(size)
        self.size = size
        self.norm, self.norm_channels = nn.RMSNorm(size.dim), nn.RMSNorm(3 * inner)
        self.norm_ffn = nn.RMSNorm(size.dim)
        self.project = nn.Linear(size.dim, 6 * inner, bias=False)
        self.out = nn.Linear(3 * inner, size.dim)
        self.bias = RelativeBias(size.longest)
        self.ffn_in, self.ffn_gate = (nn.Linear(size.dim, hidden, bias=False) for _ in range(2))
        self.ffn_out = nn.Linear(hidden, size.dim, bias=False)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, window: Window) -> Tensor:
        o = x + self.dropout(self.out(self._channels(self.norm(x), window)))
        normed = self.norm_ffn(o)
        return o + self.dropout(self.ffn_out(F.silu(self.ffn_in(normed)) * self.ffn_gate(normed)))

    def _channels(self, x: Tensor, window: Window) -> Tensor:
        inner = self.size.heads * self.size.width
        gate, values, queries, keys = F.silu(self.project(x)).split([3 * inner, inner, inner, inner], dim=-1)
        by_meaning = attend(Pointwise, window, values, queries, keys, heads=self.size.heads) / self.size.longest
        by_place = attend(ByPlace, window, values, self.bias.place)
        by_time = attend(ByTime, window, values, self.bias.time)
        channels = torch.cat([by_meaning, by_place, by_time], dim=-1)
        return self.norm_channels(channels) * gate


def _hidden(size: Size) -> int:
    return max(1, round(size.hidden * size.dim))
