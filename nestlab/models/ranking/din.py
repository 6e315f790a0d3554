"""Deep Interest Network (Zhou et al., 2018, arXiv 1706.06978): the candidate's attention over the history, then an MLP.

The trunk is shared with `MultiTask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.base import DenseOutput
from nestlab.models.dlrm import initialise, mlp
from nestlab.models.ranking.inputs import inputs_of, vector_of
from nestlab.models.ranking.interest import AttentionInterest, History


@dataclass(frozen=True)
class Inputs:
    """Of a ranking model.

    Attributes:
        dense: number of dense values.
        features: those beside the candidate and the history, each pooled to a vector of `dim`.
        dim: of every vector.
        candidate: the feature of what is ranked; of the history's table, so that both are of one space.
    """

    dense: int
    features: tuple[str, ...]
    dim: int
    candidate: str = "video_id"

    @property
    def width(self) -> int:
        """Of what the trunk puts side by side: all these, the interest, and its product with the candidate."""
        return self.dense + (len(self.features) + 3) * self.dim


class Trunk(nn.Module):
    """Everything known of a sample, through an MLP; `interest` has weights already."""

    def __init__(
        self, inputs: Inputs, interest: nn.Module, hidden: Sequence[int], *, outputs: int = 1, seed: int = 0
    ) -> None:
        super().__init__()
        self.inputs, self.interest = inputs, interest
        self.mlp = mlp([inputs.width, *hidden, outputs], last_relu=False)
        initialise(self.mlp, seed)

    def forward(self, batch: Batch, embedded: Embedded) -> Tensor:
        """[B, outputs]."""
        candidate = vector_of(embedded, self.inputs.candidate)
        interest = self.interest(batch, embedded, candidate)
        others = inputs_of(batch, embedded, self.inputs.features, candidate)
        return self.mlp(torch.cat([others, candidate, interest, candidate * interest], dim=1))


class DIN(nn.Module):
    """A probability a sample, predictions [B].

    Args:
        inputs: what it reads.
        history: the user's events.
        hidden: widths of the MLP.
        seed: of all weights.
    """

    def __init__(
        self, inputs: Inputs, *, history: History | None = None, hidden: Sequence[int] = (128, 64), seed: int = 0
    ) -> None:
        super().__init__()
        self.trunk = Trunk(inputs, AttentionInterest(inputs.dim, history=history, seed=seed + 1), hidden, seed=seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        return binary_output(self.trunk(batch, embedded).squeeze(1), batch)


def binary_output(logits: Tensor, batch: Batch) -> DenseOutput:
    """Log loss and probabilities [B] of logits [B] for labels that are 0 or 1."""
    losses = F.binary_cross_entropy_with_logits(logits, batch.labels.to(logits), reduction="none")
    return DenseOutput(losses, torch.sigmoid(logits.detach()))
