"""The dense half of a step: losses of parts, one flat sum of gradients over all ranks, clipping, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.errors import UserError


@dataclass(frozen=True)
class Clipped:
    """An optimizer whose step comes after clipping: all gradients, dense and of rows, share one norm.

    Args:
        optimizer: torch optimizer over the dense part's parameters.
        max_norm: where the norm of all gradients of the global batch is above it, they are scaled down to it, as
            `torch.nn.utils.clip_grad_norm_` does.

    Raises:
        UserError: max_norm is not above 0.
    """

    optimizer: torch.optim.Optimizer
    max_norm: float

    def __post_init__(self) -> None:
        if not self.max_norm > 0:
            raise UserError(f"clip_norm={self.max_norm}: it must be above 0")

    def scale(self, norm: float) -> float:
        """What every gradient is multiplied by."""
        factor = self.max_norm / (norm + 1e-6)
        return 1.0 if factor >= 1.0 else factor  # nan stays nan, as in torch


def weighted_sum(losses: Tensor, batch: Batch, total: float) -> Tensor:
    """Σ wᵢ·lossᵢ / total, `total` the weight of the global batch: what this part adds to the weighted mean.

    0 for a batch without weight (an empty one), whose gradients are then zero as well.
    """
    if batch.weights is not None:
        losses = losses * batch.weights
    return losses.sum() * (1.0 / total if total > 0 else 0.0)


class DenseGradients:
    """The gradients of some parameters as one flat tensor, so that one collective sums them over the ranks.

    A parameter that the loss does not depend on keeps no gradient, as in torch: an optimizer then passes it by. With
    several ranks it has one where it has one on any rank; a mark a parameter travels with the gradients, and so does
    the loss.

    Args:
        parameters: of the dense part, those that require a gradient.
        trained: which of them the optimizer has.
        least: the smallest dtype that the flat tensor may have, the same on every rank whatever its batches are.
    """

    def __init__(self, parameters: list[Tensor], trained: list[bool], least: torch.dtype) -> None:
        self.parameters, self._trained = parameters, trained
        self._dtype = reduce(torch.promote_types, (p.dtype for p in parameters), least)
        self._sizes = [p.numel() for p in parameters]

    def pack(self, loss: Tensor) -> Tensor:
        """[Σ numel + P + 1]: gradients, marks, the loss."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        marks = torch.tensor([float(p.grad is not None) for p in self.parameters], device=loss.device)
        return torch.cat([each.detach().reshape(-1).to(self._dtype) for each in (*grads, marks, loss)])

    def set(self, flat: Tensor, scale: float = 1.0) -> None:
        """Gives the parameters their summed gradients."""
        count = len(self.parameters)
        marks = flat[-1 - count : -1].tolist()
        for p, piece, mark in zip(self.parameters, flat.split([*self._sizes, count + 1]), marks, strict=False):
            p.grad = (piece if scale == 1.0 else piece * scale).view_as(p).to(p.dtype) if mark else None

    def clear(self) -> None:
        """No parameter has a gradient any more, one that the optimizer does not have neither: it would add up."""
        for p in self.parameters:
            p.grad = None

    def squares(self, flat: Tensor) -> Tensor:
        """The sum of the squares of the gradients that the optimizer uses, 0-d float64."""
        pieces = zip(flat[: sum(self._sizes)].split(self._sizes), self._trained, strict=True)
        used = [piece.double().square().sum() for piece, trained in pieces if trained]
        return torch.stack(used).sum() if used else flat.new_zeros((), dtype=torch.float64)
