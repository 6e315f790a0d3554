"""What exists of a batch between its LOAD and its RELEASE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import Residency, StepInfo
from nestlab.models import DenseOutput
from nestlab.pipeline.key_queue import Routed


class MissingInput(RuntimeError):
    """A stage ran before the one that makes its input: the schedule lacks an edge."""


@dataclass
class Held:
    """Bytes that a batch holds now, kept by the stages as they go: adding them up costs less than asking tensors.

    Each has one stage that writes it (`activations`: two that the edges order).
    """

    raw: int = 0
    inputs: int = 0
    keys: int = 0
    rows: int = 0
    activations: int = 0
    gathered: int = 0
    grads: int = 0
    summed: int = 0
    reduced: int = 0

    @property
    def batch(self) -> int:
        return self.raw + self.inputs + self.keys + self.rows

    @property
    def exchange(self) -> int:
        return self.gathered + self.grads + self.summed + self.reduced


@dataclass
class InFlight:
    """One batch in flight."""

    raw: Batch | None = None
    info: StepInfo | None = None
    read_ahead: list[Batch] = field(default_factory=list)  # read with it: their keys are to be routed with its own
    ends: bool = False  # none can be read after those: the end of a stream
    inputs: Batch | None = None
    routed: Routed | None = None
    foreseen: list[Routed] = field(default_factory=list)  # keys of later batches that its plan may know
    residency: Residency | None = None
    gathered: list[Tensor] | None = None  # [U, dim] a group: leaves of the autograd graph
    loss: Tensor | None = None
    output: DenseOutput | None = None
    row_grads: list[Tensor] | None = None
    summed_row_grads: list[Tensor] | None = None
    reached: list[Tensor] | None = None  # the dense parameters that have a gradient
    reduced: Tensor | None = None  # their gradients, flat
    held: Held = field(default_factory=Held)

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise MissingInput(f"'{name}' is not there yet: an edge of the schedule is missing")
        return value
