"""The training step, a method a stage: the only place where batches, rows, gradients and weights meet.

Each stage takes what earlier ones left for its batch and leaves what later ones need. It never waits and never looks
at another batch: when it may run is the schedule's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import GroupKeys, Residency, StepInfo, embed, route
from nestlab.exchange import Transport
from nestlab.models import DenseOutput, RecModel
from nestlab.pipeline.executors import EndOfData
from nestlab.pipeline.schedule import Action, Stage


class MissingInput(RuntimeError):
    """A stage ran before the one that makes its input: the schedule lacks an edge."""


@dataclass
class InFlight:
    """What exists of a batch between its LOAD and its RELEASE."""

    raw: Batch | None = None
    info: StepInfo | None = None
    inputs: Batch | None = None
    routed: tuple[GroupKeys, ...] | None = None
    residency: Residency | None = None
    rows: list[Tensor] | None = None  # [U, dim] a group: leaves of the autograd graph
    loss: Tensor | None = None
    output: DenseOutput | None = None
    row_grads: list[Tensor] | None = None
    summed_row_grads: list[Tensor] | None = None
    reduced: Tensor | None = None

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise MissingInput(f"'{name}' is not there yet: an edge of the schedule is missing")
        return value

    @property
    def nbytes(self) -> int:
        """Bytes that this batch holds on the host or device, for the memory account."""
        values = [getattr(self, f.name) for f in fields(self)]
        tensors = [t for v in values if isinstance(v, list) for t in v]
        return sum(t.nbytes for t in tensors) + sum(b.nbytes for b in (self.raw, self.inputs) if b is not None)


@dataclass(frozen=True)
class StepOutput:
    """What a completed step hands out. `loss` is the weighted mean over the global batch, a 0-d tensor."""

    batch: int
    loss: Tensor
    predictions: Tensor  # [B]
    labels: Tensor  # [B]


@dataclass
class TrainStep:
    """The stages over the batches in flight."""

    model: RecModel
    optimizer: torch.optim.Optimizer
    transport: Transport
    device: torch.device
    source: Iterator[Batch] | None = None
    flight: dict[int, InFlight] = field(default_factory=dict)
    outputs: dict[int, StepOutput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prepared = -1
        self._parameters = [p for p in self.model.dense.parameters() if p.requires_grad]
        self._do: dict[Stage, Callable[[int], int | None]] = {
            Stage.LOAD: self.load,
            Stage.H2D: self.h2d,
            Stage.ROUTE: self.route,
            Stage.PREPARE: self.prepare,
            Stage.EMB_EXCHANGE: self.emb_exchange,
            Stage.FORWARD: self.forward,
            Stage.BACKWARD: self.backward,
            Stage.GRAD_EXCHANGE: self.grad_exchange,
            Stage.DENSE_REDUCE: self.dense_reduce,
            Stage.UPDATE: self.update,
            Stage.RELEASE: self.release,
        }

    def perform(self, action: Action) -> int:
        """Runs one action; the bytes it moved (0 where it moves none)."""
        return self._do[action.key.stage](action.key.batch) or 0

    def load(self, t: int) -> int:
        assert self.source is not None
        batch = next(self.source, None)
        if batch is None:
            raise EndOfData(t)
        # The step number travels with the batch: an optimizer must not ask a counter that later batches advance.
        self.flight[t] = InFlight(raw=batch, info=StepInfo(number=t + 1))
        return batch.nbytes

    def h2d(self, t: int) -> int:
        b = self._batch(t)
        b.inputs = b.need("raw").to(self.device, non_blocking=True)
        return b.inputs.nbytes if self.device.type != "cpu" else 0

    def route(self, t: int) -> None:
        b = self._batch(t)
        b.routed = self.route_batch(b.need("raw"))

    def prepare(self, t: int) -> None:
        b = self._batch(t)
        if t <= self._prepared:  # the tier's protocol: what is inserted, and where, depends on the batches before
            raise MissingInput(f"batch {t} comes after batch {self._prepared}: an edge of the schedule is missing")
        b.residency = self.model.embedding.prepare([group.keys for group in b.need("routed")], batch=t)
        self._prepared = t

    def emb_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.rows = self.gather(b.need("residency"))
        for rows in b.rows:
            rows.requires_grad_()
        return sum(rows.nbytes for rows in b.rows)

    def forward(self, t: int) -> None:
        b = self._batch(t)
        inputs = b.need("inputs")
        b.output = self.model.dense(inputs, embed(b.need("rows"), b.need("routed"), inputs.size))
        b.loss = weighted_mean(b.output.losses, b.inputs)

    def backward(self, t: int) -> None:
        b = self._batch(t)
        b.need("loss").backward()
        b.row_grads = [rows.grad if rows.grad is not None else torch.zeros_like(rows) for rows in b.need("rows")]

    def grad_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.summed_row_grads = [grads.cpu() for grads in b.need("row_grads")]
        return sum(grads.nbytes for grads in b.summed_row_grads)

    def dense_reduce(self, t: int) -> int:
        b = self._batch(t)
        b.need("loss")
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        flat = torch.cat([g.reshape(-1) for g in grads]) if grads else torch.empty(0)
        b.reduced = self.transport.all_reduce(flat)
        return flat.nbytes if self.transport.world_size > 1 else 0

    def update(self, t: int) -> None:
        b = self._batch(t)
        self._set_dense_grads(b.need("reduced"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.embedding.apply(b.need("residency"), b.need("summed_row_grads"), b.need("info"))
        self.outputs[t] = StepOutput(t, b.need("loss").detach(), b.need("output").predictions, b.need("inputs").labels)

    def release(self, t: int) -> None:
        self.model.embedding.release(self._batch(t).need("residency"))
        del self.flight[t]

    def route_batch(self, batch: Batch) -> tuple[GroupKeys, ...]:
        """The batch's unique keys, and how its ids map onto them, per group of tables."""
        return route(batch, self.model.embedding.layout)

    def gather(self, residency: Residency) -> list[Tensor]:
        """The rows of a batch's unique keys, [U, dim] a group, on the compute device."""
        groups = range(len(self.model.embedding.groups))
        return [self.model.embedding.gather(residency, g).to(self.device, non_blocking=True) for g in groups]

    def _batch(self, t: int) -> InFlight:
        if t not in self.flight:
            raise MissingInput(f"batch {t} is not in flight: an edge of the schedule is missing")
        return self.flight[t]

    def _set_dense_grads(self, reduced: Tensor) -> None:
        pieces = reduced.split([p.numel() for p in self._parameters]) if self._parameters else ()
        for p, piece in zip(self._parameters, pieces, strict=True):
            p.grad = piece.view_as(p)


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Σ wᵢ·lossᵢ / Σ wᵢ; 0 for a batch without weight (an empty one), whose gradients are then zero as well."""
    if batch.weights is not None:
        losses = losses * batch.weights
    total = batch.total_weight
    return losses.sum() * (1.0 / total if total > 0 else 0.0)
