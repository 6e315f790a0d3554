"""What a scheme is: one interface, so that three of them can be compared on equal terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work


class Scheme(Protocol):
    """Forward and backward of a look-up. Cores are [p_k, width_k] each, rows of unit stride that may lie apart.

    `prepare` needs no core: it may run ahead of the update before (sorting and deduplication are done there).
    """

    name: str

    def prepare(self, shape: TTShape, bags: Bags) -> Any:
        """What forward and backward of these bags need to know; a plan of the scheme's own kind, with `nbytes`."""
        ...

    def forward(self, shape: TTShape, cores: Sequence[Tensor], plan: Any, work: Work) -> Tensor:
        """[bags, dim], each bag's weighted sum of rows; zeros for an empty bag."""
        ...

    def backward(
        self, shape: TTShape, cores: Sequence[Tensor], plan: Any, grad: Tensor, into: Sequence[Tensor], work: Work
    ) -> None:
        """Adds the gradients of the cores, given that of the bags [bags, dim], to `into` [p_k, width_k] each.

        Nothing of the table's size, Πp × Πq, is ever made.
        """
        ...
