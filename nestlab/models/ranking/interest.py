"""What a user's history says of one candidate, [B, dim]: by target attention, or by a sequence encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.dlrm import initialise, mlp
from nestlab.models.ranking.inputs import events_of
from nestlab.models.sequence.encoder import Encoder
from nestlab.models.sequence.jagged import batch_values, sums_of_runs, uncompiled
from nestlab.models.sequence.retrieval import last_states


@dataclass(frozen=True)
class History:
    """Which features of a batch are the user's events.

    Attributes:
        events: sequence features of one length a sample; their rows are added up.
        gap: of the same length, milliseconds from the event to the sample; a value, not a table's feature.
    """

    events: tuple[str, ...] = ("hist_video_id",)
    gap: str = "hist_gap_ms"


class AttentionInterest(nn.Module):
    """The sum of the events, each weighted by a small network's look at it and the candidate.

    Deep Interest Network (Zhou et al., 2018, arXiv 1706.06978): weights are not normalised, so that many events of
    one kind weigh more than one. ReLU stands for its Dice, which takes statistics over the batch: then a sample would
    depend on those beside it, and on micro-batches. Computed over events end to end: no padding.

    Args:
        dim: of an event and a candidate.
        hidden: widths of the network.
        seed: of its weights.
    """

    def __init__(self, dim: int, *, history: History | None = None, hidden: Sequence[int] = (32,), seed: int = 0):
        super().__init__()
        self.history = history or History()
        self.weigh = mlp([4 * dim, *hidden, 1], last_relu=False)
        initialise(self, seed)

    def forward(self, batch: Batch, embedded: Embedded, candidate: Tensor) -> Tensor:
        """[B, dim] for candidates [B, dim]; zeros where there is no event."""
        events, lengths = events_of(embedded, self.history.events)
        beside = uncompiled(torch.repeat_interleave)(candidate, lengths, dim=0, output_size=len(events))
        weights = self.weigh(torch.cat([events, beside, events - beside, events * beside], dim=1))
        return uncompiled(sums_of_runs)(weights * events, lengths)


class EncodedInterest(nn.Module):
    """The state of an encoder after the events and then the candidate, which so attends to all of them.

    The candidate is the last event, of the sample's own time, as in HSTU's ranking (arXiv 2402.17152), which puts
    items and actions in one sequence: an action that was taken is part of its event here.
    """

    def __init__(self, encoder: Encoder, *, history: History | None = None) -> None:
        super().__init__()
        self.history, self.encoder = history or History(), encoder

    def forward(self, batch: Batch, embedded: Embedded, candidate: Tensor) -> Tensor:
        """[B, dim] for candidates [B, dim]; the encoder needs room for one event more than the history has."""
        events, lengths = events_of(embedded, self.history.events)
        before = uncompiled(batch_values)(batch, self.history.gap).to(lengths.device)
        order = uncompiled(_with_candidates)(lengths)
        rows = torch.cat([events, candidate]).index_select(0, order)
        time = torch.cat([-before, before.new_zeros(len(candidate))]).index_select(0, order)
        return uncompiled(last_states)(self.encoder(rows, lengths + 1, time), lengths + 1)


def _with_candidates(lengths: Tensor) -> Tensor:
    """[n + B]: where the rows of samples of lengths + 1 lie in the events [n] with the candidates [B] behind them."""
    samples, ends = len(lengths), torch.cumsum(lengths + 1, 0)
    total = int(ends[-1]) if samples else 0
    last = torch.zeros(total, dtype=torch.bool, device=lengths.device)
    last[ends - 1] = True
    events = total - samples
    order = torch.empty(total, dtype=torch.int64, device=lengths.device)
    order[~last] = torch.arange(events, device=lengths.device)
    order[last] = torch.arange(events, total, device=lengths.device)
    return order
