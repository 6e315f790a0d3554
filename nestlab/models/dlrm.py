"""DLRM (Naumov et al., 2019, arXiv 1906.00091): pairwise dot products of feature vectors between two MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.base import DenseOutput


class DLRM(nn.Module):
    """The dense part: bottom MLP on dense features, dot products of all pairs of vectors, top MLP to a logit.

    Args:
        dense_in: number of dense features; with none there is no bottom MLP, and the dot products stand alone.
        features: the sparse features, each pooled to a vector of `dim`.
        dim: width of a vector; the bottom MLP ends in it.
        bottom: hidden widths of the bottom MLP.
        top: hidden widths of the top MLP.
        seed: initial weights come from a generator of their own, so that they do not depend on what ran before.
    """

    def __init__(
        self,
        dense_in: int,
        features: Sequence[str],
        dim: int,
        *,
        bottom: Sequence[int] = (128, 64),
        top: Sequence[int] = (128, 64),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.features = tuple(features)
        vectors = len(self.features) + bool(dense_in)
        self.bottom = mlp([dense_in, *bottom, dim], last_relu=True) if dense_in else None
        self.top = mlp([dim * bool(dense_in) + vectors * (vectors - 1) // 2, *top, 1], last_relu=False)
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        initialise(self, seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        vectors_bvd = embedded.stack(self.features)
        if self.bottom is not None:
            dense_bd = self.bottom(batch.dense.to(self.pairs.device, self.bottom[0].weight.dtype))
            vectors_bvd = torch.cat([dense_bd.unsqueeze(1), vectors_bvd], dim=1)
        dots_bp = torch.bmm(vectors_bvd, vectors_bvd.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logits_b = self.top(dots_bp if self.bottom is None else torch.cat([dense_bd, dots_bp], dim=1)).squeeze(1)
        losses_b = F.binary_cross_entropy_with_logits(logits_b, batch.labels.to(logits_b.dtype), reduction="none")
        return DenseOutput(losses_b, torch.sigmoid(logits_b.detach()))


def mlp(widths: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last where `last_relu`."""
    layers: list[nn.Module] = []
    for i, (n_in, n_out) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(n_in, n_out))
        if last_relu or i < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Glorot-normal weights and small normal biases, as the authors' code has it, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            n_out, n_in = layer.weight.shape
            layer.weight.normal_(0.0, (2.0 / (n_in + n_out)) ** 0.5, generator=generator)
            layer.bias.normal_(0.0, (1.0 / n_out) ** 0.5, generator=generator)
