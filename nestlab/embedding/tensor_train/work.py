"""What a look-up costs: bytes of intermediate results held at once, and floating-point operations, both counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Work:
    """Counted while a scheme runs: whatever it holds between its inputs and its outputs goes through here.

    Attributes:
        nbytes: of intermediates held now; `peak`: the most at once.
        operations: floating-point operations of the products done, a multiplication and an addition each 1.
    """

    nbytes: int = 0
    peak: int = 0
    operations: int = 0

    @contextmanager
    def hold(self, *tensors: Tensor) -> Iterator[None]:
        """Counts tensors as held until the block ends."""
        size = sum(tensor.nbytes for tensor in tensors)
        self.grow(size)
        try:
            yield
        finally:
            self.nbytes -= size

    def empty(self, *size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """A new intermediate; `drop` ends it."""
        tensor = torch.empty(*size, dtype=dtype, device=device)
        self.grow(tensor.nbytes)
        return tensor

    def drop(self, *tensors: Tensor) -> None:
        self.nbytes -= sum(tensor.nbytes for tensor in tensors)

    def grow(self, size: int) -> None:
        self.nbytes += size
        self.peak = max(self.peak, self.nbytes)
