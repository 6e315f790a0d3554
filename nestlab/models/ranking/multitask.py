"""Several actions predicted at once: one trunk, a head an action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.errors import UserError
from nestlab.models.base import DenseOutput
from nestlab.models.ranking.din import Inputs, Trunk
from nestlab.models.ranking.interest import AttentionInterest, EncodedInterest, History
from nestlab.models.sequence.encoder import Encoder

UNDEFINED = 1 << 8  # an action's bit times this: it is not known whether it was taken


class MultiTask(nn.Module):
    """A probability a sample and action, predictions [B, T].

    A label is a bit mask of the actions that were taken and, times UNDEFINED, of those of which nothing is known: they
    have no part in the sample's loss, which is the weighted sum of the others' log losses. A float32 holds it exactly.

    Args:
        inputs: what it reads.
        tasks: bit by name, as `kuairand_format.ACTIONS`; the heads are in this order.
        encoder: of the history with the candidate behind it; None: the candidate's attention, as in `DIN`. It keeps the
            weights that it has.
        history: the user's events.
        weights: of a task in the loss, by name; of those left out 1.
        hidden: widths of the trunk; a head is a vector over the last of them.
        seed: of all other weights.

    Raises:
        UserError: a bit that is no power of two below UNDEFINED or is given twice, or a weight of no task.
    """

    def __init__(
        self,
        inputs: Inputs,
        tasks: Mapping[str, int],
        *,
        encoder: Encoder | None = None,
        history: History | None = None,
        weights: Mapping[str, float] | None = None,
        hidden: Sequence[int] = (128, 64),
        seed: int = 0,
    ) -> None:
        super().__init__()
        weights = weights or {}
        _check(tasks, weights)
        self.tasks = tuple(tasks)
        self.register_buffer("bits", torch.tensor(list(tasks.values())), persistent=False)
        self.register_buffer("weights", torch.tensor([weights.get(name, 1.0) for name in tasks]), persistent=False)
        if encoder is None:
            interest = AttentionInterest(inputs.dim, history=history, seed=seed + 1)
        else:
            interest = EncodedInterest(encoder, history=history)
        self.trunk = Trunk(inputs, interest, hidden, outputs=len(tasks), seed=seed)

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        logits = self.trunk(batch, embedded)
        taken, known = (each.to(logits) for each in self.read(batch.labels.to(self.bits.device)))
        losses = F.binary_cross_entropy_with_logits(logits, taken, reduction="none")
        return DenseOutput((losses * known * self.weights.to(logits)).sum(1), torch.sigmoid(logits.detach()))

    def read(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] bool of labels [B]: which actions were taken, and of which that is known."""
        masks = labels.to(torch.int64)[:, None]
        return masks & self.bits != 0, masks & self.bits * UNDEFINED == 0


def _check(tasks: Mapping[str, int], weights: Mapping[str, float]) -> None:
    bits = list(tasks.values())
    if not bits or len(set(bits)) != len(bits) or any(b < 1 or b & (b - 1) or b >= UNDEFINED for b in bits):
        raise UserError(f"multi-task: bits {bits}: give each task a power of two of its own below {UNDEFINED}")
    if unknown := [name for name in weights if name not in tasks]:
        raise UserError(f"multi-task: weights of {', '.join(unknown)}; the tasks are {', '.join(tasks)}")
