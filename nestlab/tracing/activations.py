"""What autograd keeps of a forward pass for the backward pass: activations, counted without an allocator to ask.

Imports torch, and is therefore imported by whoever counts, not by `nestlab.tracing` itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """A context that counts, in `nbytes`, the memory behind every tensor that autograd saves inside it.

    Each storage counts once and whole. Numbers and gradients stay what they are: what is saved is kept as it is.

    Args:
        others: tensors that are accounted for elsewhere (weights, rows, inputs) and do not count.
    """

    def __init__(self, others: Iterable[Tensor] = ()) -> None:
        self.nbytes = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in others}
        super().__init__(self._keep, _give_back)

    def __enter__(self) -> SavedBytes:
        super().__enter__()
        return self

    def _keep(self, tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided:  # a sparse tensor has no storage of its own to ask
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.nbytes += storage.nbytes()
        return tensor.detach()  # the tensor itself would hold its own graph alive: a circle that is never freed


def _give_back(tensor: Tensor) -> Tensor:
    return tensor
