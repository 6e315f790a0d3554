"""EcoRec (SC'24): each unique prefix multiplied once, each unique row once, in slices of the sorted unique rows.

Backward contracts first, then multiplies, at both levels: gradients are summed to unique rows, those of prefixes to
unique prefixes. That is exact, because every product is linear in the gradient that comes from above.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.embedding.tensor_train import ecorec_torch
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_numba import Job, Threads
from nestlab.embedding.tensor_train.ecorec_plan import Plan, Span, plan
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work
from nestlab.errors import UserError

BUDGET = 4 << 20  # bytes of intermediates at once where slices are chosen automatically, see docs/log.md


class EcoRec:
    """The scheme that multiplies nothing twice; see `Scheme`."""

    name = "ecorec"

    def __init__(self, slices: int = 1, budget: int | None = None) -> None:
        """
        Args:
            slices: in which the sorted unique rows are worked off, a prefix never split; 0: as many as the budget asks
                for. Any number gives the same gradients but for the order of sums.
            budget: bytes of intermediates that a slice may hold, where slices is 0; BUDGET by default.

        Raises:
            UserError: a negative number of slices, or a budget below 1 byte.
        """
        if slices < 0:
            raise UserError(f"EcoRec: slices is {slices}; give 0 (automatic) or a positive number")
        if budget is not None and budget < 1:
            raise UserError(f"EcoRec: budget is {budget} bytes; give at least 1, or none")
        self.slices = slices
        self.budget = BUDGET if budget is None else budget
        self._threads = Threads()

    def prepare(self, shape: TTShape, bags: Bags) -> Plan:
        return plan(shape, bags)

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work) -> Tensor:
        if _kernels_take(plan, cores):
            width = (0,) * (shape.cores - 2) + (shape.dim,)
            spans = self._spans(plan, width, cores[0].element_size())
            return Job.of(shape, cores, plan, work, self._threads).forward(cores[0], spans)
        spans = self._spans(plan, ecorec_torch.widths(shape), cores[0].element_size())
        return ecorec_torch.forward(shape, cores, plan, work, spans)

    def backward(
        self, shape: TTShape, cores: Sequence[Tensor], plan: Plan, grad: Tensor, into: Sequence[Tensor], work: Work
    ) -> None:
        if _kernels_take(plan, cores):
            return Job.of(shape, cores, plan, work, self._threads).backward(grad, into)
        spans = self._spans(plan, ecorec_torch.widths(shape), cores[0].element_size())
        ecorec_torch.backward(shape, cores, plan, grad, into, work, spans)

    def _spans(self, plan: Plan, widths: Sequence[int], itemsize: int) -> tuple[Span, ...]:
        held = itemsize * sum(n * width for n, width in zip(plan.prefixes, widths, strict=True))
        return plan.cut(self.slices or max(1, -(-held // self.budget)), widths)


def _kernels_take(plan: Plan, cores: Sequence[Tensor]) -> bool:
    return plan.grouped is not None and all(core.dtype in (torch.float32, torch.float64) for core in cores)
