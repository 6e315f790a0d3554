"""The training step, a method a stage: the only place where batches, rows, gradients and weights meet.

Each stage takes what earlier ones left for its batch and leaves what later ones need. It never waits and never looks
at another batch: when it may run is the schedule's affair. Two stages that the edges leave unordered may run at once,
in two threads: they write no attribute in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import GroupKeys, Residency, StepInfo, embed, route
from nestlab.exchange import Channel, Transport
from nestlab.models import RecModel
from nestlab.pipeline.in_flight import Held, InFlight, MissingInput
from nestlab.pipeline.key_queue import KeyQueue, routed_bytes
from nestlab.pipeline.ledger import EndOfData
from nestlab.pipeline.schedule import Action, Stage
from nestlab.tracing.activations import SavedBytes
from nestlab.tracing.memory import InUse


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

    `counts_activations` makes FORWARD count what autograd keeps; the last count then stands for later batches. `ended`
    is the newest source that was found at its end.
    """

    model: RecModel
    optimizer: torch.optim.Optimizer
    transport: Transport
    device: torch.device
    source: Iterator[Batch] | None = None
    flight: dict[int, InFlight] = field(default_factory=dict)
    outputs: dict[int, StepOutput] = field(default_factory=dict)
    counts_activations: bool = False
    ended: Iterator[Batch] | None = None

    def __post_init__(self) -> None:
        store = self.model.embedding
        self._store = store
        self._keys_ahead = KeyQueue(store.options.looks_ahead)
        self._newest: dict[Stage, int] = {}  # of the stages that come in batch order
        self._steps_before = store.last_step  # of pipelines that trained these tables before
        self._activations = 0
        self._tables = 0
        self._parameters = [p for p in self.model.dense.parameters() if p.requires_grad]
        self._do: dict[Stage, Callable[[int], int | None]] = {
            s: getattr(self, s.lower()) for s in Stage if hasattr(self, s.lower())
        }

    def perform(self, action: Action) -> int:
        """Runs one action; the bytes it moved (0 where it moves none). torch's grad mode is a thread's own."""
        stage = action.key.stage
        with torch.set_grad_enabled(stage is Stage.FORWARD or stage is Stage.BACKWARD):
            return self._do[stage](action.key.batch) or 0

    def in_use(self) -> InUse:
        """Bytes held now, by kind: integers are added up, and no tensor is asked."""
        batches = self._keys_ahead.read_bytes + self._keys_ahead.key_bytes
        activations = exchange = 0
        for b in list(self.flight.values()):  # a copy: other lanes may load meanwhile
            batches += b.held.batch
            activations += b.held.activations
            exchange += b.held.exchange
        return InUse(self._tables, self._store.device_bytes, batches, activations, exchange)

    def dense_bytes(self) -> int:
        """Weights of the dense part, as many gradients, and what the optimizer keeps."""
        state = [value for kept in self.optimizer.state.values() for value in kept.values()]
        tensors = [*self.model.dense.parameters(), *self._parameters, *(v for v in state if isinstance(v, Tensor))]
        return sum(tensor.nbytes for tensor in tensors)

    def load(self, t: int) -> int:
        assert self.source is not None
        source = self.source
        try:
            batch, new, last = self._keys_ahead.read(source)
        except StopIteration:
            self.ended = source
            raise EndOfData(t) from None
        # The step number travels with the batch: an optimizer must not ask a counter that later batches advance.
        info = StepInfo(number=self._steps_before + t + 1)
        self.flight[t] = InFlight(raw=batch, info=info, read_ahead=new, ends=last, held=Held(raw=batch.nbytes))
        return sum(each.nbytes for each in new)

    def h2d(self, t: int) -> int:
        b = self._batch(t)
        b.inputs = b.need("raw").to(self.device, non_blocking=True)
        b.held.inputs = b.inputs.nbytes if self.device.type != "cpu" else 0  # on the CPU it is the same memory
        return b.held.inputs

    def route(self, t: int) -> None:
        b = self._batch(t)
        b.need("raw")
        if self._keys_ahead.length:
            self._in_order(Stage.ROUTE, t)
        b.routed, b.foreseen = self._keys_ahead.route(b.read_ahead, self.route_batch)
        b.held.keys = routed_bytes(b.routed)

    def prepare(self, t: int) -> int:
        self.post(t)
        self.plan(t)
        return self.retrieve(t)

    def post(self, t: int) -> None:
        b = self._batch(t)
        routed = b.need("routed")
        self._in_order(Stage.POST, t)
        b.residency = self._store.resolve([group.keys for group in routed], batch=t)
        self._tables = sum(self._store.nbytes().values())

    def plan(self, t: int) -> None:
        b = self._batch(t)
        residency = b.need("residency")
        self._in_order(Stage.PLAN, t)
        if self._keys_ahead.length:  # what may be known when t is planned, whenever that is
            for routed in b.foreseen:
                self._store.foresee([group.keys for group in routed])
            if b.ends:
                self._store.end_of_stream()
        self._store.plan(residency)

    def retrieve(self, t: int) -> int:
        b, counters = self._batch(t), self._store.counters
        residency = b.need("residency")
        self._in_order(Stage.RETRIEVE, t)
        before = counters.bytes_in
        self._store.retrieve(residency)
        b.held.rows = residency.nbytes
        return counters.bytes_in - before

    def evict(self, t: int) -> None:
        """Takes no batch: what goes depends on the batches resolved so far, which are those up to t."""
        if (newest := {self._newest.get(stage) for stage in (Stage.POST, Stage.PLAN)}) != {t}:
            raise MissingInput(
                f"eviction after batch {t} while {newest} are planned: an edge of the schedule is missing"
            )
        self._store.evict()

    def commit(self, t: int) -> None:
        self._store.commit(self._batch(t).need("residency"))

    def emb_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.gathered = self.gather(b.need("residency"))
        for rows in b.gathered:
            rows.requires_grad_()
        b.held.gathered = sum(rows.nbytes for rows in b.gathered)
        return b.held.gathered

    def forward(self, t: int) -> None:
        b = self._batch(t)
        inputs = b.need("inputs")
        with self._counting(b) as saved:
            b.output = self.model.dense(inputs, embed(b.need("gathered"), b.need("routed"), inputs.size))
            b.loss = weighted_mean(b.output.losses, b.inputs)
        if saved is not None:
            self._activations = saved.nbytes
        b.held.activations = self._activations

    def backward(self, t: int) -> None:
        b = self._batch(t)
        b.need("loss").backward()
        b.row_grads = [rows.grad if rows.grad is not None else torch.zeros_like(rows) for rows in b.need("gathered")]
        b.held.activations = 0  # autograd has let go of them
        b.held.grads = sum(grads.nbytes for grads in b.row_grads)

    def grad_exchange(self, t: int) -> int:
        b = self._batch(t)
        b.summed_row_grads = [grads.cpu() for grads in b.need("row_grads")]
        nbytes = sum(grads.nbytes for grads in b.summed_row_grads)
        if self.device.type != "cpu":  # on the CPU they are the row gradients themselves
            b.held.summed = nbytes
        return nbytes

    def dense_reduce(self, t: int) -> int:
        b = self._batch(t)
        b.need("loss")
        # A parameter that the loss does not depend on keeps no gradient, as in torch: an optimizer then passes it by.
        b.reached = [p for p in self._parameters if p.grad is not None]
        flat = torch.cat([p.grad.reshape(-1) for p in b.reached]) if b.reached else torch.empty(0)
        b.reduced = self.transport.all_reduce(Channel.DENSE, flat)
        b.held.reduced = flat.nbytes
        return flat.nbytes if self.transport.mesh.world_size > 1 else 0

    def update(self, t: int) -> None:
        b = self._batch(t)
        self._set_dense_grads(b.need("reached"), b.need("reduced"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._store.apply(b.need("residency"), b.need("summed_row_grads"), b.need("info"))
        self.outputs[t] = StepOutput(t, b.need("loss").detach(), b.need("output").predictions, b.need("inputs").labels)

    def writeback(self, t: int) -> int:
        residency, counters = self._batch(t).need("residency"), self._store.counters
        before = counters.bytes_out
        self._store.writeback(residency)
        return counters.bytes_out - before

    def release(self, t: int) -> None:
        self._store.release(self._batch(t).need("residency"))
        del self.flight[t]

    def route_batch(self, batch: Batch) -> tuple[GroupKeys, ...]:
        """The batch's unique keys, and how its ids map onto them, per group of tables."""
        return route(batch, self.model.embedding.layout, count=self.model.embedding.options.features.counts)

    def gather(self, residency: Residency) -> list[Tensor]:
        """The rows of a batch's unique keys, [U, dim] a group, on the compute device."""
        groups = range(len(self._store.groups))
        return [self._store.gather(residency, g).to(self.device, non_blocking=True) for g in groups]

    def _counting(self, b: InFlight) -> SavedBytes | nullcontext:
        """Counts what autograd saves, but for what other kinds of the account hold already."""
        if not self.counts_activations:
            return nullcontext()
        inputs = [value for value in vars(b.inputs).values() if isinstance(value, Tensor)]
        places = [group.positions for group in b.need("routed")]
        dense = self.model.dense
        return SavedBytes([*dense.parameters(), *dense.buffers(), *b.need("gathered"), *inputs, *places])

    def _batch(self, t: int) -> InFlight:
        if t not in self.flight:
            raise MissingInput(f"batch {t} is not in flight: an edge of the schedule is missing")
        return self.flight[t]

    def _in_order(self, stage: Stage, t: int) -> None:
        """The store's protocol: what is inserted, where, and what leaves depends on the batches before."""
        if t <= (newest := self._newest.get(stage, -1)):
            raise MissingInput(f"{stage} of batch {t} comes after that of {newest}: an edge of the schedule is missing")
        self._newest[stage] = t

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
