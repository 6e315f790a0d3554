"""Hot rows of a tensor-train table, held decompressed and trained as ordinary rows (TT-Rec's cache, arXiv 2101.11714).

The rows used most often in training are chosen anew every n batches. A row that becomes hot starts from the value its
cores give it at that moment, with new optimizer state. While it is hot, look-ups of it read its own record, and its
gradient goes there: it trains as freely as a row of an ordinary table, and moves no core. A row that stays hot keeps
what it has learnt. A row that is no longer hot is read from the cores again, as if it had never been hot: the
difference between its record and what the cores give is dropped, since cores cannot take on one row without changing
others. How much that was is counted (`HotCounters`). Of equally used rows the one that is hot stays, so that little is
dropped. `full_weight` gives what look-ups read, hot rows from their records: decompressing loses nothing.

So this is another model than the table without hot rows: inexact, because the gradients of a hot row move its own
record instead of the cores that it shares with others.

The choice depends on the batches prepared before, in their order, and on nothing else: batches that were prepared and
then broken off by an error stay counted, as they do for admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from nestlab.embedding import optimizers_torch
from nestlab.embedding.optimizers import RowOptimizer, StepInfo
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.config import TensorTrain
from nestlab.embedding.tensor_train.cores import Cores, require_like
from nestlab.embedding.tensor_train.hot_choice import Change, HotChoice
from nestlab.embedding.tensor_train.work import Work

HOT = "hot."  # what the names of its tensors begin with


@dataclass(frozen=True, eq=False)
class HotPart:
    """What one look-up reads from hot rows.

    Attributes:
        bags: as the look-up's; its rows are slots.
        change: number of the last choice made before.
    """

    bags: Bags
    change: int


@dataclass
class HotCounters:
    """Over all training look-ups.

    Attributes:
        looked_up, hits: rows asked for, and those of them that were hot.
        entered, left: rows that became hot, and that ceased to be.
        dropped: sum over rows that left of the squared difference between record and cores; `dropped_of`: of the
            squared record.
    """

    looked_up: int = 0
    hits: int = 0
    entered: int = 0
    left: int = 0
    dropped: float = 0.0
    dropped_of: float = 0.0

    @property
    def hit_share(self) -> float:
        return self.hits / max(self.looked_up, 1)


class HotRows:
    """At most K rows of one table, by slot.

    Planning (`split`) runs ahead in batch order; records change when the batch itself is computed (`settle`).

    Attributes:
        records: [K, dim + state] `[weight | optimizer state]`.
        held: [K] int64, in host memory, the row whose record a slot has now; −1: none.
        grads: [K, dim], of the look-ups since the last `apply`.
        counters: see `HotCounters`.
    """

    def __init__(self, tensor_train: TensorTrain, cores: Cores, optimizer: RowOptimizer) -> None:
        self.capacity, dim = tensor_train.hot_rows, cores.shape.dim
        self._cores, self._optimizer = cores, optimizer
        self._choice = HotChoice(tensor_train)
        self.records = cores.records[0].new_zeros(self.capacity, dim + optimizer.state_width(dim))
        self.held = torch.full((self.capacity,), -1)
        self.counters = HotCounters()
        self.grads = self.records.new_zeros(self.capacity, dim)
        self._touched = torch.zeros(self.capacity, dtype=torch.bool, device=cores.device)
        self._pending: list[Change] = []

    @property
    def weights(self) -> Tensor:
        """[K, dim], a view."""
        return self.records[:, : self._cores.shape.dim]

    @property
    def nbytes(self) -> int:
        return self.records.nbytes + self.grads.nbytes + self.held.nbytes + self._choice.nbytes

    def split(self, bags: Bags, train: bool) -> tuple[Bags, HotPart]:
        """What is left to the scheme, and what hot rows give.

        Args:
            train: counts the rows, and makes the choice that is due. Otherwise nothing changes, and no training batch
                may be in flight.
        """
        slots = self._plan(bags.rows) if train else self.slots_of(bags.rows)
        slots = slots.to(bags.rows.device)
        hot = slots >= 0
        return _pick(bags, bags.rows, ~hot), HotPart(_pick(bags, slots, hot), self._choice.changes if train else 0)

    def settle(self, part: HotPart | None = None) -> None:
        """Makes the changes planned up to this part (None: all of them) in the records: rows that enter are
        decompressed now."""
        limit = self._choice.changes if part is None else part.change
        while self._pending and self._pending[0].number <= limit:
            self._make(self._pending.pop(0))

    def forward(self, part: HotPart, out: Tensor, work: Work) -> None:
        """Adds the bags of hot rows to out [bags, dim]."""
        bags = part.bags
        if not bags.nnz:
            return
        pooled = embedding_bag(
            bags.rows,
            self.weights,
            bags.offsets,
            mode="sum",
            per_sample_weights=bags.weights,
            include_last_offset=True,
        )
        with work.hold(pooled):
            out += pooled

    def backward(self, part: HotPart, grad: Tensor, work: Work) -> None:
        """Adds the gradients of hot rows, given that of the bags [bags, dim]."""
        bags = part.bags
        if not bags.nnz:
            return
        each = torch.arange(bags.count, device=grad.device)
        of_rows = grad.index_select(0, torch.repeat_interleave(each, bags.offsets.diff()))
        if bags.weights is not None:
            of_rows.mul_(bags.weights.unsqueeze(1))
        with work.hold(of_rows):
            self.grads.index_add_(0, bags.rows, of_rows)
        self._touched[bags.rows] = True

    def apply(self, step: StepInfo) -> None:
        """One row-optimizer step over the hot rows touched since the last one."""
        slots = self._touched.nonzero().squeeze(1)
        if slots.numel() and self.records.device.type == "cpu":
            picked = self.grads.index_select(0, slots)
            self._optimizer.update(self.records.numpy(), slots.numpy(), picked.numpy(), step)
        elif slots.numel():
            optimizers_torch.update(self._optimizer, self.records, slots, self.grads.index_select(0, slots), step)
        self.forget()

    def forget(self) -> None:
        """Gradients start anew, without a step."""
        self.grads.zero_()
        self._touched.zero_()

    def slots_of(self, rows: Tensor) -> Tensor:
        """[n] int64 in host memory: the slot whose record rows [n] have now, or −1."""
        order = torch.argsort(self.held)
        held, rows = self.held[order], rows.cpu()
        places = torch.searchsorted(held, rows).clamp(max=self.capacity - 1)
        return torch.where(held[places] == rows, order[places], -1)

    def overwrite(self, rows: Tensor, values: Tensor) -> Tensor:
        """values [n, dim] of rows [n], with those of hot rows in place of what the cores gave."""
        slots = self.slots_of(rows).to(values.device)
        return torch.where((slots >= 0).unsqueeze(1), self.weights[slots.clamp(min=0)], values)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all that a continued training needs, counters apart."""
        self.settle()
        counted = {f"{HOT}{name}": tensor for name, tensor in self._choice.state_dict().items()}
        return {f"{HOT}records": self.records.clone(), f"{HOT}held": self.held.clone(), **counted}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts what `state_dict` gave in place of what is here.

        Raises:
            UserError: see `require_like`.
        """
        require_like(tensors, self.state_dict(), "hot rows")
        self.records.copy_(tensors[f"{HOT}records"])
        self.held.copy_(tensors[f"{HOT}held"])
        self._choice.load({name.removeprefix(HOT): tensor for name, tensor in tensors.items()})
        self.forget()

    def _plan(self, rows: Tensor) -> Tensor:
        if (change := self._choice.next_batch()) is not None:
            self._pending.append(change)
        slots = self._choice.count(rows)
        self.counters.looked_up += slots.numel()
        self.counters.hits += int((slots >= 0).sum())
        return slots

    def _make(self, change: Change) -> None:
        self._leave(torch.from_numpy(change.emptied))
        slots, rows = torch.from_numpy(change.slots), torch.from_numpy(change.rows)
        self.held[slots] = rows
        if rows.numel():
            self.records[slots.to(self.records.device)] = self._optimizer.initial_state
            self.weights[slots.to(self.records.device)] = self._cores.rows(rows)
        self.counters.entered += rows.numel()

    def _leave(self, slots: Tensor) -> None:
        if not slots.numel():
            return
        learnt = self.weights[slots.to(self.records.device)]
        difference = learnt - self._cores.rows(self.held[slots])
        self.counters.left += slots.numel()
        self.counters.dropped += float(difference.double().square().sum())
        self.counters.dropped_of += float(learnt.double().square().sum())
        self.held[slots] = -1


def _pick(bags: Bags, rows: Tensor, mask: Tensor) -> Bags:
    """The bags with the rows [nnz] where mask [nnz] is set, and no others."""
    running = pad(torch.cumsum(mask, 0), (1, 0))
    return Bags(rows[mask], running[bags.offsets], None if bags.weights is None else bags.weights[mask])
