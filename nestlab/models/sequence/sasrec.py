"""SASRec (Kang and McAuley, 2018, arXiv 1808.09781): causal softmax attention and learnt places; the reference."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.models.sequence.attention import Softmax, Window, attend
from nestlab.models.sequence.encoder import Encoder, Size


class SASRec(Encoder):
    """Layers of attention and a feed-forward part; a place is counted from the start of the window."""

    timed, placed = False, True

    def layer(self, size: Size) -> nn.Module:
        return SASRecLayer(size)

    def event_flops(self) -> int:
        inner, hidden = self.size.heads * self.size.width, max(1, round(self.size.hidden * self.size.dim))
        return 2 * self.size.dim * 3 * inner + 2 * inner * self.size.dim + 2 * 2 * self.size.dim * hidden

    def pair_flops(self) -> int:
        return 4 * self.size.heads * self.size.width


class SASRecLayer(nn.Module):
    """x + W·attention(norm(x)), then + FFN(norm(·)); softmax over earlier events and itself."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner, hidden = size.heads * size.width, max(1, round(size.hidden * size.dim))
        self.size = size
        self.norm, self.norm_ffn = nn.LayerNorm(size.dim), nn.LayerNorm(size.dim)
        self.project = nn.Linear(size.dim, 3 * inner)
        self.out = nn.Linear(inner, size.dim)
        self.ffn_in, self.ffn_out = nn.Linear(size.dim, hidden), nn.Linear(hidden, size.dim)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, window: Window) -> Tensor:
        queries, keys, values = self.project(self.norm(x)).chunk(3, dim=-1)
        x = x + self.dropout(self.out(attend(Softmax, window, values, queries, keys, heads=self.size.heads)))
        return x + self.dropout(self.ffn_out(F.relu(self.ffn_in(self.norm_ffn(x)))))
