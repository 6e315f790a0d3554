"""EcoRec (SC'24): each unique prefix multiplied once, each unique row once, in slices of the sorted unique rows.

Backward contracts first, then multiplies, at both levels: gradients are summed to unique rows, those of prefixes to
unique prefixes. That is exact, because every product is linear in the gradient that comes from above.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nestlab.embedding.tensor_train import ecorec_cores, ecorec_torch
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_numba import Threads
from nestlab.embedding.tensor_train.ecorec_plan import Plan, Span, plan
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work
from nestlab.errors import UserError

BUDGET = 1 << 20  # bytes of a slice chosen automatically on a CPU: they stay in its cache, see docs/log.md
DEVICE_BUDGET = 256 << 20  # and elsewhere


class EcoRec:
    """The scheme that multiplies nothing twice; see `Scheme`.

    By kernels, products and their gradients never leave a block of some prefixes: what slices divide are the unique
    rows that wait to be added to their bags (none wait where no bag has two). By torch, slices divide everything.
    """

    name = "ecorec"

    def __init__(self, slices: int = 1, budget: int | None = None, kernels: bool = True) -> None:
        """
        Args:
            slices: in which the sorted unique rows are worked off, a prefix never split; 0: as many as the budget asks
                for. Any number gives the same gradients but for the order of sums.
            budget: bytes that a slice may hold (products and rows), where slices is 0; by default BUDGET or
                DEVICE_BUDGET.
            kernels: use numba's on a CPU; False: torch alone, as elsewhere.

        Raises:
            UserError: a negative number of slices, or a budget below 1 byte.
        """
        if slices < 0:
            raise UserError(f"EcoRec: slices is {slices}; give 0 (automatic) or a positive number")
        if budget is not None and budget < 1:
            raise UserError(f"EcoRec: budget is {budget} bytes; give at least 1, or none")
        self.slices = slices
        self.budget, self.kernels = budget, kernels
        self._threads = Threads()

    def prepare(self, shape: TTShape, bags: Bags) -> Plan:
        return plan(shape, bags)

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work) -> Tensor:
        if self._kernels_take(plan, cores):
            slices = self._slices(plan.unique * shape.dim, cores[0])  # products never leave their block, rows do
            return ecorec_cores.forward(shape, cores, plan, work, slices, self._threads)
        return ecorec_torch.forward(shape, cores, plan, work, self._spans(shape, plan, cores[0]))

    def backward(
        self, shape: TTShape, cores: Sequence[Tensor], plan: Plan, grad: Tensor, into: Sequence[Tensor], work: Work
    ) -> None:
        if self._kernels_take(plan, cores):
            return ecorec_cores.backward(shape, cores, plan, grad, into, work, self._threads)
        ecorec_torch.backward(shape, cores, plan, grad, into, work, self._spans(shape, plan, cores[0]))

    def _spans(self, shape: TTShape, plan: Plan, like: Tensor) -> tuple[Span, ...]:
        widths = ecorec_torch.widths(shape)
        held = sum(n * width for n, width in zip(plan.prefixes, widths, strict=True))
        return plan.cut(self._slices(held, like), widths)

    def _slices(self, held: int, like: Tensor) -> int:
        """How many, where one would hold so many numbers."""
        budget = self.budget or (BUDGET if like.device.type == "cpu" else DEVICE_BUDGET)
        return self.slices or max(1, -(-held * like.element_size() // budget))

    def _kernels_take(self, plan: Plan, cores: Sequence[Tensor]) -> bool:
        known = all(core.dtype in (torch.float32, torch.float64) for core in cores)
        return self.kernels and known and plan.grouped is not None
