"""Bytes of the tensors that a piece of torch code holds at once, for code that counts nothing itself."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Live(TorchDispatchMode):
    """Inside `with`: every storage that an operation makes counts from then until it is gone.

    Attributes:
        nbytes: held now; `peak`: the most at once. What was there before counts for nothing.
    """

    def __init__(self, *known: Tensor) -> None:
        """`known`: tensors whose storages do not count."""
        super().__init__()
        self.nbytes = self.peak = 0
        self._seen = {each.untyped_storage().data_ptr() for each in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, Tensor):
                for part in (each._indices(), each._values()) if each.is_sparse else (each,):
                    self._hold(part)
        return result

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address and address not in self._seen:
            self._seen.add(address)
            self.nbytes += size
            self.peak = max(self.peak, self.nbytes)
            weakref.finalize(storage, self._let_go, address, size)

    def _let_go(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.nbytes -= size
