"""Next-item retrieval: at every event the item after it, against the sample's negatives (sampled softmax)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.base import DenseOutput
from nestlab.models.sequence.encoder import Encoder
from nestlab.models.sequence.jagged import Blocks, batch_values, gathered, uncompiled, unit_rows


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
        states = unit_rows(self.encoder(events, lengths, uncompiled(batch_values)(batch, "time")))
        losses = uncompiled(self._losses)(batch, embedded, states, lengths)
        return DenseOutput(losses, uncompiled(last_states)(states.detach(), lengths))

    def flops(self, lengths: Tensor, negatives: int) -> int:
        """Of a forward pass, as the encoder counts them: its own, and the scores of so many negatives an event."""
        return self.encoder.flops(lengths) + 2 * int(lengths.sum()) * negatives * self.encoder.size.dim

    def _losses(self, batch: Batch, embedded: Embedded, states: Tensor, lengths: Tensor) -> Tensor:
        """[B]; no more than the scores of a block's events are written at once."""
        blocks, losses = Blocks.of(lengths), states.new_zeros(batch.size)
        if not blocks.each:
            return losses
        targets, ids = unit_rows(embedded.sequence("target")[0]), batch_values(batch, "target")
        negatives, negative_ids = self._negatives(batch, embedded)
        found, each = [], (blocks.each, blocks.padded(states), blocks.padded(targets), blocks.of_samples(negatives))
        for block, state, target, negative in zip(*each, strict=True):
            same = negative_ids[block.samples][:, None, :] == gathered(ids, block)[:, :, None]
            wrong = state @ negative.mT
            right = (state * target).sum(-1, keepdim=True)
            scores = torch.cat([right, wrong.masked_fill_(same, -torch.inf)], dim=-1) / self.temperature
            surprise = torch.logsumexp(scores, dim=-1) - scores[..., 0]
            found.append(surprise.masked_fill(~block.events, 0.0).sum(1) / block.events.sum(1))
        return losses.index_copy(0, blocks.samples, torch.cat(found))

    def _negatives(self, batch: Batch, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Unit-length rows [B, K, D] and ids [B, K]."""
        rows, counts = embedded.sequence("negative")
        most = int(counts.max())
        if rows.shape[0] != most * batch.size:
            raise ValueError("retrieval: samples have different numbers of negatives; give each the same")
        ids = batch_values(batch, "negative").view(batch.size, most)
        return unit_rows(rows).view(batch.size, most, rows.shape[-1]), ids


def last_states(states: Tensor, lengths: Tensor) -> Tensor:
    """[B, D]: of states [n, D] the one after each sample's last event; zeros where it has none."""
    ends, there = torch.cumsum(lengths, 0), torch.nonzero(lengths).view(-1)
    last = states.index_select(0, ends.index_select(0, there) - 1)
    return states.new_zeros(len(lengths), states.shape[1]).index_copy(0, there, last)
