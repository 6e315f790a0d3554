"""What exists of a batch's tensor-train tables, turn by turn, between ROUTE and UPDATE."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestlab.embedding.tensor_train.table import LookUp
from nestlab.exchange.table_wise import TableRouted


@dataclass(eq=False)
class Turn:
    """What is computed and exchanged in one go: a group of tables for all samples, or all tables for some samples.

    Attributes:
        routed, group: what the owners look up of it.
        looks: of this rank's tables, in the group's order.
        outputs, grads: of this rank's tables, for the samples of all ranks, while they are there.
        pooled: by feature, for this rank's samples.
        held_outputs, held_pooled, held_grads: their bytes, each written by the stage that makes them and, before the
            next turn's, by the one that lets go of them.
    """

    routed: TableRouted
    group: int
    looks: tuple[LookUp, ...]
    outputs: list[Tensor] = field(default_factory=list)
    pooled: dict[str, Tensor] = field(default_factory=dict)
    grads: list[Tensor] = field(default_factory=list)
    held_outputs: int = 0
    held_pooled: int = 0
    held_grads: int = 0

    @property
    def features(self) -> list[str]:
        """Of the group's tables, on every rank."""
        tables = self.routed.placement.groups[self.group]
        return [feature for t in tables for feature in self.routed.tables[t].features]

    def rows_of(self, feature: str) -> int:
        """Rows of a feature for this rank's samples of this turn; 0 where it is not among them."""
        for t in self.routed.placement.groups[self.group]:
            if feature in self.routed.tables[t].features:
                return self.routed.rows[t][self.routed.tables[t].features.index(feature)]
        return 0


@dataclass
class TablesInFlight:
    """What exists of a batch's tensor-train tables, turn by turn."""

    turns: tuple[Turn, ...]

    @property
    def nbytes(self) -> int:
        routed = {id(turn.routed): turn.routed.nbytes for turn in self.turns}
        return sum(routed.values()) + sum(look.nbytes for turn in self.turns for look in turn.looks)

    @property
    def held_exchange(self) -> int:
        """Bytes of rows and gradients that are on their way, or were and are still there."""
        return sum(turn.held_outputs + turn.held_pooled + turn.held_grads for turn in self.turns)

    def rows(self, feature: str) -> Tensor:
        """This rank's pooled rows [B, dim], or of a sequence its rows, of the whole batch."""
        pieces = [turn.pooled[feature] for turn in self.turns if feature in turn.pooled]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def span(self, feature: str, turn: Turn) -> slice:
        """Where the rows of a turn lie among those of the batch."""
        begin = sum(each.rows_of(feature) for each in self.turns[: self.turns.index(turn)])
        return slice(begin, begin + turn.rows_of(feature))
