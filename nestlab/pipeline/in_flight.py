"""What exists of a batch between its LOAD and its RELEASE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import Residency, StepInfo
from nestlab.exchange import RoutedBatch
from nestlab.models import DenseOutput
from nestlab.pipeline.turns import TablesInFlight


class MissingInput(RuntimeError):
    """A stage ran before the one that makes its input: the schedule lacks an edge."""


@dataclass
class Held:
    """Bytes that a batch holds now, kept by the stages as they go: adding them up costs less than asking tensors.

    Each has one stage that writes it.
    """

    raw: int = 0
    inputs: int = 0
    keys: int = 0
    tables: int = 0
    rows: int = 0
    summed: int = 0
    reduced: int = 0


@dataclass
class Part:
    """One micro-batch in flight; only the stages of this part write here.

    `held_rows`, `held_activations`, `held_grads` and `held_pooled_grads` are bytes, as in `Held` (two stages write
    some of them, which the edges order).
    """

    inputs: Batch | None = None
    rows: list[Tensor] | None = None  # [n, dim] a group: leaves of the autograd graph
    pooled: dict[str, Tensor] = field(default_factory=dict)  # a feature of a tensor-train table: leaves as well
    output: DenseOutput | None = None
    loss: Tensor | None = None  # what this part adds to the mean over the global batch
    row_grads: list[Tensor] | None = None
    held_rows: int = 0
    held_activations: int = 0
    held_grads: int = 0
    held_pooled_grads: int = 0

    def need(self, name: str) -> Any:
        return _need(self, name)


@dataclass
class InFlight:
    """One batch in flight."""

    parts: tuple[Part, ...]
    absent: bool = False  # this rank has no batch, others may
    raw: Batch | None = None
    info: StepInfo | None = None
    read_ahead: list[Batch] = field(default_factory=list)  # read with it: their keys are to be routed with its own
    ends: bool = False  # none can be read after those: the end of a stream
    inputs: Batch | None = None
    routed: RoutedBatch | None = None
    foreseen: list[RoutedBatch] = field(default_factory=list)  # keys of later batches that its plan may know
    tables: TablesInFlight | None = None  # tensor-train tables
    residency: Residency | None = None
    summed_row_grads: list[Tensor] | None = None  # [U, dim] a group
    reduced: Tensor | None = None  # dense gradients and the loss, flat, summed over the ranks
    scale: float = 1.0  # of all gradients, by clipping
    held: Held = field(default_factory=Held)

    def need(self, name: str) -> Any:
        return _need(self, name)

    @property
    def held_batch(self) -> int:
        held = self.held
        return held.raw + held.inputs + held.keys + held.tables + held.rows

    @property
    def held_activations(self) -> int:
        return sum(part.held_activations for part in self.parts)

    @property
    def held_exchange(self) -> int:
        tables = 0 if self.tables is None else self.tables.held_exchange
        of_parts = sum(part.held_rows + part.held_grads + part.held_pooled_grads for part in self.parts)
        return self.held.summed + self.held.reduced + of_parts + tables


def _need(holder: object, name: str) -> Any:
    value = getattr(holder, name)
    if value is None:
        raise MissingInput(f"'{name}' is not there yet: an edge of the schedule is missing")
    return value
