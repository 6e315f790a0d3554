"""The training step, a method a stage: the only place where batches, rows, gradients and weights meet.

Each stage takes what earlier ones left for its batch and leaves what later ones need. It never waits and never looks
at another batch: when it may run is the schedule's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import GroupKeys, Residency, StepInfo, embed, route
from nestlab.exchange import Transport
from nestlab.models import DenseOutput, RecModel
from nestlab.pipeline.executors import EndOfData
from nestlab.pipeline.schedule import Action, Stage
from nestlab.tracing.activations import SavedBytes
from nestlab.tracing.memory import InUse


class MissingInput(RuntimeError):
    """A stage ran before the one that makes its input: the schedule lacks an edge."""


@dataclass
class InFlight:
    """What exists of a batch between its LOAD and its RELEASE.

    The `…_bytes` are what it holds now, kept by the stages as they go: adding them up costs less than asking tensors.
    """

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
    reached: list[Tensor] | None = None  # the dense parameters that have a gradient
    reduced: Tensor | None = None  # their gradients, flat
    batch_bytes: int = 0
    activation_bytes: int = 0
    exchange_bytes: int = 0

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise MissingInput(f"'{name}' is not there yet: an edge of the schedule is missing")
        return value


@dataclass(frozen=True)
class StepOutput:
    """What a completed step hands out. `loss` is the weighted mean over the global batch, a 0-d tensor."""

    batch: int
    loss: Tensor
    predictions: Tensor  # [B]
    labels: Tensor  # [B]


@dataclass
class TrainStep:
    """The stages over the batches in flight.

    `counts_activations` makes FORWARD count what autograd keeps; the last count then stands for later batches.
    """

    model: RecModel
    optimizer: torch.optim.Optimizer
    transport: Transport
    device: torch.device
    source: Iterator[Batch] | None = None
    flight: dict[int, InFlight] = field(default_factory=dict)
    outputs: dict[int, StepOutput] = field(default_factory=dict)
    counts_activations: bool = False

    def __post_init__(self) -> None:
        self._prepared = -1
        self._steps_before = self.model.embedding.last_step  # of pipelines that trained these tables before
        self._activations = 0
        self._tables = 0
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

    def in_use(self) -> InUse:
        """Bytes held now, by kind: integers are added up, and no tensor is asked."""
        batches = activations = exchange = 0
        for b in list(self.flight.values()):  # a copy: other lanes may load meanwhile
            batches += b.batch_bytes
            activations += b.activation_bytes
            exchange += b.exchange_bytes
        return InUse(self._tables, self.model.embedding.device_bytes, batches, activations, exchange)

    def dense_bytes(self) -> int:
        """Weights of the dense part, as many gradients, and what the optimizer keeps."""
        state = [value for kept in self.optimizer.state.values() for value in kept.values()]
        tensors = [*self.model.dense.parameters(), *self._parameters, *(v for v in state if isinstance(v, Tensor))]
        return sum(tensor.nbytes for tensor in tensors)

    def load(self, t: int) -> int:
        assert self.source is not None
        try:
            batch = next(self.source)
        except StopIteration:
            raise EndOfData(t) from None
        # The step number travels with the batch: an optimizer must not ask a counter that later batches advance.
        info = StepInfo(number=self._steps_before + t + 1)
        self.flight[t] = InFlight(raw=batch, info=info, batch_bytes=batch.nbytes)
        return batch.nbytes

    def h2d(self, t: int) -> int:
        b = self._batch(t)
        b.inputs = b.need("raw").to(self.device, non_blocking=True)
        moved = b.inputs.nbytes if self.device.type != "cpu" else 0  # on the CPU it is the same memory
        b.batch_bytes += moved
        return moved

    def route(self, t: int) -> None:
        b = self._batch(t)
        b.routed = self.route_batch(b.need("raw"))
        b.batch_bytes += sum(group.keys.ids.nbytes + group.positions.nbytes for group in b.routed)

    def prepare(self, t: int) -> None:
        b = self._batch(t)
        if t <= self._prepared:  # the tier's protocol: what is inserted, and where, depends on the batches before
            raise MissingInput(f"batch {t} comes after batch {self._prepared}: an edge of the schedule is missing")
        b.residency = self.model.embedding.prepare([group.keys for group in b.need("routed")], batch=t)
        self._tables = sum(self.model.embedding.nbytes().values())
        b.batch_bytes += b.residency.nbytes
        self._prepared = t

    def emb_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.rows = self.gather(b.need("residency"))
        for rows in b.rows:
            rows.requires_grad_()
        nbytes = sum(rows.nbytes for rows in b.rows)
        b.exchange_bytes += nbytes
        return nbytes

    def forward(self, t: int) -> None:
        b = self._batch(t)
        inputs = b.need("inputs")
        with self._counting(b) as saved:
            b.output = self.model.dense(inputs, embed(b.need("rows"), b.need("routed"), inputs.size))
            b.loss = weighted_mean(b.output.losses, b.inputs)
        if saved is not None:
            self._activations = saved.nbytes
        b.activation_bytes = self._activations

    def backward(self, t: int) -> None:
        b = self._batch(t)
        b.need("loss").backward()
        b.row_grads = [rows.grad if rows.grad is not None else torch.zeros_like(rows) for rows in b.need("rows")]
        b.activation_bytes = 0  # autograd has let go of them
        b.exchange_bytes += sum(grads.nbytes for grads in b.row_grads)

    def grad_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.summed_row_grads = [grads.cpu() for grads in b.need("row_grads")]
        nbytes = sum(grads.nbytes for grads in b.summed_row_grads)
        if self.device.type != "cpu":  # on the CPU they are the row gradients themselves
            b.exchange_bytes += nbytes
        return nbytes

    def dense_reduce(self, t: int) -> int:
        b = self._batch(t)
        b.need("loss")
        # A parameter that the loss does not depend on keeps no gradient, as in torch: an optimizer then passes it by.
        b.reached = [p for p in self._parameters if p.grad is not None]
        flat = torch.cat([p.grad.reshape(-1) for p in b.reached]) if b.reached else torch.empty(0)
        b.reduced = self.transport.all_reduce(flat)
        b.exchange_bytes += flat.nbytes
        return flat.nbytes if self.transport.world_size > 1 else 0

    def update(self, t: int) -> None:
        b = self._batch(t)
        self._set_dense_grads(b.need("reached"), b.need("reduced"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.embedding.apply(b.need("residency"), b.need("summed_row_grads"), b.need("info"))
        self.outputs[t] = StepOutput(t, b.need("loss").detach(), b.need("output").predictions, b.need("inputs").labels)

    def release(self, t: int) -> None:
        self.model.embedding.release(self._batch(t).need("residency"))
        del self.flight[t]

    def route_batch(self, batch: Batch) -> tuple[GroupKeys, ...]:
        """The batch's unique keys, and how its ids map onto them, per group of tables."""
        return route(batch, self.model.embedding.layout, count=self.model.embedding.options.features.counts)

    def gather(self, residency: Residency) -> list[Tensor]:
        """The rows of a batch's unique keys, [U, dim] a group, on the compute device."""
        groups = range(len(self.model.embedding.groups))
        return [self.model.embedding.gather(residency, g).to(self.device, non_blocking=True) for g in groups]

    def _counting(self, b: InFlight) -> SavedBytes | nullcontext:
        """Counts what autograd saves, but for what other kinds of the account hold already."""
        if not self.counts_activations:
            return nullcontext()
        inputs = [value for value in vars(b.inputs).values() if isinstance(value, Tensor)]
        places = [group.positions for group in b.need("routed")]
        dense = self.model.dense
        return SavedBytes([*dense.parameters(), *dense.buffers(), *b.need("rows"), *inputs, *places])

    def _batch(self, t: int) -> InFlight:
        if t not in self.flight:
            raise MissingInput(f"batch {t} is not in flight: an edge of the schedule is missing")
        return self.flight[t]

    @staticmethod
    def _set_dense_grads(reached: list[Tensor], reduced: Tensor) -> None:
        pieces = reduced.split([p.numel() for p in reached]) if reached else ()
        for p, piece in zip(reached, pieces, strict=True):
            p.grad = piece.view_as(p)


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """Σ wᵢ·lossᵢ / Σ wᵢ; 0 for a batch without weight (an empty one), whose gradients are then zero as well."""
    if batch.weights is not None:
        losses = losses * batch.weights
    total = batch.total_weight
    return losses.sum() * (1.0 / total if total > 0 else 0.0)
