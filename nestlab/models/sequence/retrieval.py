"""Next-item retrieval: at every event the item after it, against the sample's negatives (sampled softmax)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.base import DenseOutput
from nestlab.models.sequence.encoder import Encoder
from nestlab.models.sequence.jagged import batch_values, blocks_of, joined


class Retrieval(nn.Module):
    """The dense part over the batches of `nestlab.data.sequences`.

    An item's score is the product of its unit-length row and the unit-length state after the last event, over the
    temperature. An event is its item's row and, where the batch is embedded with it, its action's.

    Args:
        encoder: of events.
        temperature: of the softmax.
    """

    def __init__(self, encoder: Encoder, *, temperature: float = 0.05) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, temperature

    def forward(self, batch: Batch, embedded: Embedded) -> DenseOutput:
        """losses [B]: the mean over a sample's positions; predictions [B, D]: its last state, or zeros."""
        events, lengths = embedded.sequence("item")
        if "action" in embedded.features:
            events = events + embedded.sequence("action")[0]
        states = F.normalize(self.encoder(events, lengths, batch_values(batch, "time")), dim=-1)
        losses = self._losses(batch, embedded, states, lengths)
        return DenseOutput(losses, last_states(states, lengths).detach())

    def _losses(self, batch: Batch, embedded: Embedded, states: Tensor, lengths: Tensor) -> Tensor:
        targets = F.normalize(embedded.sequence("target")[0], dim=-1)
        right = (states * targets).sum(-1) / self.temperature
        wrong = self._wrong(batch, embedded, states, lengths)
        each = torch.logsumexp(torch.cat([right[:, None], wrong], dim=1), dim=1) - right
        sample = torch.repeat_interleave(torch.arange(batch.size, device=lengths.device), lengths)
        summed = each.new_zeros(batch.size).index_add(0, sample, each)
        return summed / lengths.clamp(min=1)

    def _wrong(self, batch: Batch, embedded: Embedded, states: Tensor, lengths: Tensor) -> Tensor:
        """[n, K]: scores of the sample's negatives; −∞ where one is the target."""
        rows, counts = embedded.sequence("negative")
        most = int(counts.max()) if batch.size else 0
        if rows.shape[0] != most * batch.size:
            raise ValueError("retrieval: samples have different numbers of negatives; give each the same")
        blocks = blocks_of(lengths)
        if not blocks or not most:
            return states.new_empty(states.shape[0], most)
        rows = F.normalize(rows, dim=-1).view(batch.size, most, -1)
        ids, target = batch_values(batch, "negative").view(batch.size, most), batch_values(batch, "target")
        scores = []
        for block in blocks:
            score = states[block.index] @ rows[block.samples].transpose(1, 2) / self.temperature
            same = ids[block.samples][:, None, :] == target[block.index][:, :, None]
            scores.append(score.masked_fill(same, -torch.inf))
        return joined(scores, blocks)


def last_states(states: Tensor, lengths: Tensor) -> Tensor:
    """[B, D]: of states [n, D] the one after each sample's last event; zeros where it has none."""
    ends = torch.cumsum(lengths, 0)
    there = lengths > 0
    last = states.new_zeros(lengths.shape[0], states.shape[1])
    last[there] = states[ends[there] - 1].detach()
    return last
