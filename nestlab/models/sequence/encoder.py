"""What the encoders share: sizes, layers over windows, the bias of places and times.

Source of the bias: HSTU (Zhai et al., 2024, arXiv 2402.17152); buckets are powers of two of the milliseconds between
two events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nestlab.errors import UserError
from nestlab.models.sequence.attention import TIME_BUCKETS, Window, pairs_of
from nestlab.models.sequence.jagged import places_within, uncompiled


@dataclass(frozen=True)
class Size:
    """Of an encoder.

    Attributes:
        dim: width of an event, D.
        blocks: layers.
        heads: of attention.
        longest: events of the longest window; also what pointwise attention is divided by.
        head_dim: of queries, keys and values; None: dim / heads.
        hidden: of the feed-forward part, as a multiple of dim.
        dropout: of what each layer adds. Numbers are drawn anew at each call, from the generator of the rank: a batch
            that is cut into micro-batches, or among more ranks, drops other values than the whole one, so that such
            schedules are not exact with it. Those that keep batches whole are, and a restart goes on with the draws.
        seed: of the initial weights.
    """

    dim: int
    blocks: int = 2
    heads: int = 1
    longest: int = 200
    head_dim: int | None = None
    hidden: float = 4.0
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dim", "blocks", "heads", "longest"):
            if getattr(self, name) < 1:
                raise UserError(f"encoder: {name}={getattr(self, name)}: choose 1 or more")
        if self.head_dim is None and self.dim % self.heads:
            raise UserError(
                f"encoder: {self.heads} heads do not divide dim={self.dim}; give another dim, or other heads"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"encoder: dropout={self.dropout}: choose 0 … 1, without 1")

    @property
    def width(self) -> int:
        """Of one head."""
        return self.head_dim or self.dim // self.heads


class Encoder(nn.Module):
    """Layers over jagged sequences; a subclass gives the layers.

    Attributes:
        timed: whether layers look at `Window.buckets`.
        placed: whether it has `positions` [longest, D].
    """

    timed, placed = True, False

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.positions = nn.Parameter(torch.empty(size.longest, size.dim)) if self.placed else None
        self.layers = nn.ModuleList(self.layer(size) for _ in range(size.blocks))
        initialise_all(self, size.seed)

    def layer(self, size: Size) -> nn.Module:
        """A new layer: `forward(x [n, D], window) -> [n, D]`."""
        raise NotImplementedError

    def forward(self, x: Tensor, lengths: Tensor, time: Tensor) -> Tensor:
        """[n, D] of events x [n, D] at `time` [n] int64, milliseconds; lengths [B] of the windows.

        Raises:
            UserError: a window is longer than the encoder's longest.
        """
        window = uncompiled(self._window)(lengths, time)
        if self.placed:
            x = x * math.sqrt(self.size.dim) + self.positions.index_select(0, uncompiled(places_within)(lengths))
        for layer in self.layers:
            x = layer(x, window)
        return x

    def _window(self, lengths: Tensor, time: Tensor) -> Window:
        longest = int(lengths.max()) if len(lengths) else 0
        if longest > self.size.longest:
            raise UserError(
                f"encoder: a window of {longest} events; the longest is {self.size.longest}: raise it, or "
                "shorten the history"
            )
        return Window.of(lengths, time if self.timed else None)

    def flops(self, lengths: Tensor) -> int:
        """Of a forward pass without padding, two a multiplication with its addition; products of matrices alone.

        Attention is counted as it is computed: a chunk of queries by the keys up to its last one.
        """
        events, pairs = int(lengths.sum()), pairs_of(lengths)
        return self.size.blocks * (events * self.event_flops() + pairs * self.pair_flops())

    def event_flops(self) -> int:
        """Of one layer and event."""
        raise NotImplementedError

    def pair_flops(self) -> int:
        """Of one layer and pair of events."""
        raise NotImplementedError


class RelativeBias(nn.Module):
    """A number for each distance of places, and one for each bucket of time between two events."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.empty(longest))
        self.time = nn.Parameter(torch.empty(TIME_BUCKETS))


@torch.no_grad()
def initialise_all(module: nn.Module, seed: int) -> None:
    """Weights from a generator of their own: Xavier-normal matrices, small biases of attention, plain norms."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(module.named_parameters()):
        if name.endswith(("place", "time", "positions")):
            value.normal_(0.0, 0.02, generator=generator)
        elif value.dim() > 1:
            value.normal_(0.0, math.sqrt(2.0 / sum(value.shape)), generator=generator)
        elif name.endswith("bias"):
            value.zero_()
        else:
            value.fill_(1.0)
