"""The training step, a method a stage: the only place where batches, rows, gradients and weights meet.

Each stage takes what earlier ones left for its batch and leaves what later ones need. It never waits and never looks
at another batch: when it may run is the schedule's affair. Two stages that the edges leave unordered may run at once,
in two threads: they write no attribute in common.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding import StepInfo, embed
from nestlab.exchange import Channel, RoutedBatch, Transport
from nestlab.exchange.replicas import Replicas
from nestlab.models import RecModel
from nestlab.pipeline.arithmetic import DenseArithmetic
from nestlab.pipeline.dense import Clipped, DenseGradients, weighted_sum
from nestlab.pipeline.in_flight import Held, InFlight, MissingInput, Part
from nestlab.pipeline.key_queue import KeyQueue
from nestlab.pipeline.ledger import EndOfData
from nestlab.pipeline.rows import Rows
from nestlab.pipeline.schedule import WHOLE, Action, Stage
from nestlab.pipeline.source import Source, filler
from nestlab.pipeline.tensor_trains import TensorTrains
from nestlab.techniques import Techniques
from nestlab.tracing.activations import SavedBytes
from nestlab.tracing.memory import InUse


@dataclass(frozen=True)
class StepOutput:
    """What a completed step hands out: the loss of the global batch, and this rank's samples.

    `loss` is the weighted mean over the global batch, a 0-d tensor, the same on every rank. Clustering changes the
    order of the samples: predictions and labels stand in the same one.
    """

    batch: int
    loss: Tensor
    predictions: Tensor  # [B] or [B, k]
    labels: Tensor  # [B]


@dataclass
class TrainStep:
    """The stages over the batches in flight.

    `counts_activations` makes FORWARD count what autograd keeps; the last count then stands for later batches. `ended`
    is the newest source that was found at its end, until everything of it is trained.
    """

    model: RecModel
    optimizer: torch.optim.Optimizer | Clipped
    transport: Transport
    device: torch.device
    techniques: Techniques = field(default_factory=Techniques)
    source: Source | None = None
    flight: dict[int, InFlight] = field(default_factory=dict)
    outputs: dict[int, StepOutput] = field(default_factory=dict)
    counts_activations: bool = False
    ended: Source | None = None

    def __post_init__(self) -> None:
        store = self.model.embedding
        self._store = store
        self.dense = DenseArithmetic(self.model.dense, self.techniques, self.device, store.dtype)
        self.rows = Rows(store, self.transport, self.techniques)
        self.filler = filler(store.layout)
        self._clip = self.optimizer if isinstance(self.optimizer, Clipped) else None
        self._dense_step = self._clip.optimizer if self._clip else self.optimizer
        learning = [p for p in self.model.dense.parameters() if p.requires_grad]
        known = {id(p) for group in self._dense_step.param_groups for p in group["params"]}
        self._gradients = DenseGradients(learning, [id(p) in known for p in learning], store.dtype)
        whole = store.whole.configs
        self.tables = TensorTrains(store, self.transport, self.techniques, self.device) if whole else None
        self._replicas = Replicas(store, self.transport) if self.transport.mesh.replicas > 1 else None
        self._keys_ahead = KeyQueue(store.options.looks_ahead)
        self._newest: dict[Stage, int] = {}  # of the stages that come in batch order
        self._steps_before = 0  # what this pipeline's batches are counted from
        self._activations = 0
        self._tables = 0
        self._do: dict[Stage, Callable[..., int | None]] = {stage: getattr(self, stage.lower()) for stage in Stage}

    def perform(self, action: Action) -> int:
        """Runs one action; the bytes it moved (0 where it moves none). torch's grad mode is a thread's own."""
        stage, batch, part = action.key
        with torch.set_grad_enabled(stage is Stage.FORWARD or stage is Stage.BACKWARD):
            return (self._do[stage](batch) if part == WHOLE else self._do[stage](batch, part)) or 0

    def in_use(self) -> InUse:
        """Bytes held now, by kind: integers are added up, and no tensor is asked."""
        batches = self._keys_ahead.read_bytes + self._keys_ahead.key_bytes
        activations = exchange = 0
        for b in list(self.flight.values()):  # a copy: other lanes may load meanwhile
            batches += b.held_batch
            activations += b.held_activations
            exchange += b.held_exchange
        return InUse(self._tables, self._store.device_bytes, batches, activations, exchange)

    def dense_bytes(self) -> int:
        """Weights of the dense part, as many gradients, and what the optimizer keeps."""
        state = [value for kept in self._dense_step.state.values() for value in kept.values()]
        tensors = [
            *self.model.dense.parameters(),
            *self._gradients.parameters,
            *(v for v in state if torch.is_tensor(v)),
        ]
        return sum(tensor.nbytes for tensor in tensors)

    def load(self, t: int) -> int:
        assert self.source is not None
        source = self.source
        try:
            batch, new, last = self._keys_ahead.read(source)
        except StopIteration:
            self.ended = source
            raise EndOfData(t) from None
        absent = batch is self.filler
        if self.device.type == "cuda":
            batch = batch.pin_memory()  # H2D then copies beside what else the host does
        if not self.flight:  # whoever trained these tables meanwhile, or loaded a checkpoint: steps count on from there
            self._steps_before = self._store.last_step - t
        # The step number travels with the batch: an optimizer must not ask a counter that later batches advance.
        info = StepInfo(number=self._steps_before + t + 1)
        parts = tuple(Part() for _ in range(self.techniques.micro_batches))
        held = Held(raw=batch.nbytes)
        self.flight[t] = InFlight(parts, absent, raw=batch, info=info, read_ahead=new, ends=last, held=held)
        return sum(each.nbytes for each in new)

    def h2d(self, t: int) -> int:
        b = self._batch(t)
        b.inputs = b.need("raw").to(self.device, non_blocking=True)
        slices = b.inputs.micro_batches(len(b.parts)) if len(b.parts) > 1 else [b.inputs]
        for part, inputs in zip(b.parts, slices, strict=True):
            part.inputs = inputs
        b.held.inputs = b.inputs.nbytes if self.device.type != "cpu" else 0  # on the CPU it is the same memory
        return b.held.inputs

    def route(self, t: int) -> None:
        b = self._batch(t)
        b.need("raw")
        if self._keys_ahead.length:
            self._in_order(Stage.ROUTE, t)
        b.routed, b.foreseen = self._keys_ahead.route(b.read_ahead, self.route_batch)
        if not b.routed.present:
            self.ended = self.source
            self._newest.pop(Stage.ROUTE, None)  # the next epoch begins with this number
            raise EndOfData(t)
        b.held.keys = b.routed.nbytes

    def prepare(self, t: int) -> int:
        self.post(t)
        self.plan(t)
        return self.retrieve(t)

    def post(self, t: int) -> None:
        b = self._batch(t)
        routed = b.need("routed")
        self._in_order(Stage.POST, t)
        if self.tables is not None:
            b.tables = self.tables.plan(routed.tables)
            b.held.tables = b.tables.nbytes
        b.residency = self._store.resolve(routed.owned, batch=t)
        self._tables = sum(self._store.nbytes().values()) + self._store.whole.nbytes

    def plan(self, t: int) -> None:
        b = self._batch(t)
        residency = b.need("residency")
        self._in_order(Stage.PLAN, t)
        if self._keys_ahead.length:  # what may be known when t is planned, whenever that is
            self._foresee(b)
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

    def emb_exchange(self, t: int, i: int) -> int:
        b = self._batch(t)
        part, routed = b.parts[i], b.need("routed")
        part.rows = self.rows.look_up(routed, b.need("residency"), i, self.device)
        for rows in part.rows:
            rows.requires_grad_()
        part.held_rows = sum(rows.nbytes for rows in part.rows)
        return part.held_rows if self.transport.mesh.shards == 1 else self.rows.leaving(routed, i).rows

    def tt_forward(self, t: int, group: int) -> int:
        assert self.tables is not None
        return self.tables.forward(self._batch(t).need("tables"), group)

    def tt_exchange(self, t: int, group: int) -> int:
        assert self.tables is not None
        return self.tables.exchange(self._batch(t).need("tables"), group)

    def forward(self, t: int, i: int) -> None:
        b = self._batch(t)
        part, routed, inputs = b.parts[i], b.need("routed"), b.parts[i].need("inputs")
        if b.absent:  # nothing to compute, and no gradient of any parameter
            part.need("rows")
            part.loss = torch.zeros((), device=self.device)
            return
        with self._counting(b, i) as saved:
            embedded = embed(part.need("rows"), routed.parts[i], inputs.size)
            if self.tables is not None:
                part.pooled = self.tables.leaves(b.need("tables"), [each.need("inputs") for each in b.parts], i)
                self.tables.add(embedded, inputs, part.pooled)
            part.output = self.dense(inputs, embedded)
            part.loss = weighted_sum(part.output.losses, inputs, routed.weight)
        if saved is not None:
            self._activations = saved.nbytes
        part.held_activations = self._activations

    def backward(self, t: int, i: int) -> None:
        part = self._batch(t).parts[i]
        loss, rows = part.need("loss"), part.need("rows")
        if loss.requires_grad:
            self.dense.backward(loss)
        part.row_grads = [each.grad if each.grad is not None else torch.zeros_like(each) for each in rows]
        part.held_activations = 0  # autograd has let go of them
        part.held_grads = sum(grads.nbytes for grads in part.row_grads)
        part.held_pooled_grads = sum(leaf.nbytes for leaf in part.pooled.values())  # each has a gradient of its size

    def grad_exchange(self, t: int, i: int) -> int:
        b = self._batch(t)
        part, routed = b.parts[i], b.need("routed")
        grads = part.need("row_grads")
        b.summed_row_grads = self.rows.give_back(routed, i, grads, b.summed_row_grads or [])
        for each in grads:
            if each.device.type == "cuda":
                each.record_stream(torch.cuda.current_stream(each.device))  # made on the stream of BACKWARD
        nbytes = sum(each.nbytes for each in grads)
        if grads and b.summed_row_grads[0] is not grads[0]:
            b.held.summed = sum(each.nbytes for each in b.summed_row_grads)
        if len(b.parts) > 1:  # the window stays open for long: what no stage needs any more goes now
            part.rows = part.row_grads = None
            part.held_rows = part.held_grads = 0
        return nbytes if self.transport.mesh.shards == 1 else self.rows.leaving(routed, i).grads

    def tt_grad_exchange(self, t: int, group: int) -> int:
        assert self.tables is not None
        b = self._batch(t)
        return self.tables.give_back(b.need("tables"), group, [part.pooled for part in b.parts])

    def tt_backward(self, t: int, group: int) -> None:
        assert self.tables is not None
        self.tables.backward(self._batch(t).need("tables"), group)

    def core_reduce(self, t: int) -> int:
        assert self.tables is not None
        return self.tables.reduce()

    def dense_reduce(self, t: int) -> int:
        b = self._batch(t)
        loss = sum((part.need("loss").detach() for part in b.parts[1:]), start=b.parts[0].need("loss").detach())
        flat = self._gradients.pack(loss)
        b.reduced = self.transport.all_reduce(Channel.DENSE, flat)
        b.held.reduced = flat.nbytes
        return flat.nbytes if self.transport.mesh.world_size > 1 else 0

    def clip(self, t: int) -> int:
        """The norm of all gradients of the global batch; what it scales them by travels with the batch.

        With replica groups, rows count as the mean over the groups of what each would apply by itself.
        """
        assert self._clip is not None
        b, mesh = self._batch(t), self.transport.mesh
        own = sum(grads.double().square().sum() for grads in self._row_grads(b)) / mesh.replicas
        if self.tables is not None:
            own = own + self.tables.squares()
        rows = self.transport.all_reduce(Channel.DENSE, torch.as_tensor(own, dtype=torch.float64).reshape(1))
        b.scale = self._clip.scale(float((self._gradients.squares(b.need("reduced")).cpu() + rows[0]).sqrt()))
        return rows.nbytes if mesh.world_size > 1 else 0

    def update(self, t: int) -> None:
        b = self._batch(t)
        reduced, routed = b.need("reduced"), b.need("routed")
        self._gradients.set(reduced, b.scale)
        self._dense_step.step()
        self._dense_step.zero_grad(set_to_none=True)
        self._gradients.clear()
        grads = [each if b.scale == 1.0 else each * b.scale for each in self._row_grads(b)]
        self._store.apply(b.need("residency"), grads, b.need("info"))
        if self.tables is not None:
            self.tables.apply(b.need("info"), b.scale)
        if self._replicas is not None:
            self._replicas.touched(routed.owned)
        self.outputs[t] = self._output(t, b, reduced[-1].clone())

    def writeback(self, t: int) -> int:
        residency, counters = self._batch(t).need("residency"), self._store.counters
        before = counters.bytes_out
        self._store.writeback(residency)
        return counters.bytes_out - before

    def release(self, t: int) -> None:
        self._store.release(self._batch(t).need("residency"))
        del self.flight[t]

    def sync(self, t: int) -> int:
        """Takes no batch: the replicas of what was trained since the last time become their mean."""
        return self._replicas.sync() if self._replicas is not None else 0

    def end_epoch(self) -> None:
        """Drops what was loaded beyond the end of the data, and keys known of it: after a drain there may be such keys.

        A source that is through is forgotten: its iterator may begin again, and those batches are another source's.
        """
        many, through = self.transport.mesh.world_size > 1, self.ended is self.source
        if many and through:
            self.flight.clear()
            self._keys_ahead.clear()
        elif many:
            self._keys_ahead.drop_absent()
        if through:
            self.source = self.ended = None

    def foresee_held(self) -> None:
        """Tells the store once more what is known of batches to come: another pipeline trained the tables meanwhile."""
        held, ends = self._keys_ahead.held(self.source)
        for routed in held:
            if not routed.present:
                ends = True
                break
            self._store.foresee(routed.owned)
        if ends:
            self._store.end_of_stream()

    def route_batch(self, batch: Batch) -> RoutedBatch:
        """Who needs which rows of whom for this batch; a collective."""
        routed = self.rows.route(batch, present=batch is not self.filler)
        if self.tables is None:
            return routed
        return replace(routed, tables=self.tables.route(batch, batch is not self.filler))

    def _row_grads(self, b: InFlight) -> list[Tensor]:
        """Summed per key. Times M with M replica groups: so the mean of their steps is the step of the global mean."""
        summed, replicas = [grads.cpu() for grads in b.need("summed_row_grads")], self.transport.mesh.replicas
        return [grads * replicas for grads in summed] if replicas > 1 else summed

    def _output(self, t: int, b: InFlight, loss: Tensor) -> StepOutput:
        predictions = [part.output.predictions for part in b.parts if part.output is not None]
        labels = b.need("inputs").labels
        joined = predictions[0] if len(predictions) == 1 else torch.cat(predictions) if predictions else labels
        return StepOutput(t, loss, joined, labels)

    def _foresee(self, b: InFlight) -> None:
        for routed in b.foreseen:
            if not routed.present:
                b.ends = True
                break
            self._store.foresee(routed.owned)
        if b.ends:
            self._store.end_of_stream()

    def _counting(self, b: InFlight, i: int) -> SavedBytes | nullcontext:
        """Counts what autograd saves, but for what other kinds of the account hold already."""
        if not self.counts_activations:
            return nullcontext()
        part, dense = b.parts[i], self.model.dense
        inputs = [value for value in vars(part.inputs).values() if isinstance(value, Tensor)]
        places = [group.positions for group in b.need("routed").parts[i]]
        return SavedBytes([*dense.parameters(), *dense.buffers(), *part.need("rows"), *inputs, *places])

    def _batch(self, t: int) -> InFlight:
        if t not in self.flight:
            raise MissingInput(f"batch {t} is not in flight: an edge of the schedule is missing")
        return self.flight[t]

    def _in_order(self, stage: Stage, t: int) -> None:
        """The store's protocol: what is inserted, where, and what leaves depends on the batches before."""
        if t <= (newest := self._newest.get(stage, -1)):
            raise MissingInput(f"{stage} of batch {t} comes after that of {newest}: an edge of the schedule is missing")
        self._newest[stage] = t
