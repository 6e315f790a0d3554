"""Batch to KeyedJaggedTensor and back. Both directions share storage: nothing is copied.

Labels, dense values and sample weights have no place in a KeyedJaggedTensor; they stay with the caller.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.errors import UserError

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

_TIERED = {  # what needs torchrec to be there, and is loaded when it is asked for
    "TieredEmbeddingBagCollection": "tiered",
    "TieredEmbeddingCollection": "tiered",
    "NestPipeTrainPipeline": "nestpipe",
    "Baseline": "baselines",
    "Variant": "baselines",
    "ExportedState": "tiered_state",
    "export_state": "tiered_state",
    "import_state": "tiered_state",
}


def __getattr__(name: str) -> Any:
    if name not in _TIERED:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    usable, reason = available()
    if not usable:
        raise UserError(f"{name} needs torchrec: {reason}")
    return getattr(importlib.import_module(f"nestlab.interop.{_TIERED[name]}"), name)


@functools.cache
def available() -> tuple[bool, str]:
    """Whether torchrec can be used here, and if not, why, in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fbgemm warns of its own deprecated parts, which nobody here asked for
            import fbgemm_gpu  # noqa: F401
            import torchrec  # noqa: F401
    except ModuleNotFoundError as error:
        return False, f"{error.name} is not installed; make torchrec adds it where there is a build"
    except Exception as error:  # a binary for another torch raises anything from OSError to AttributeError
        return False, f"torchrec cannot be imported: {(str(error) or repr(error)).splitlines()[0]}"
    return True, ""


def to_kjt(batch: Batch) -> KeyedJaggedTensor:
    """The sparse part of a batch: its ids as values, its lengths, and its ids' weights where it has them."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor(
        keys=list(batch.features),
        values=batch.ids,
        lengths=batch.lengths,
        weights=batch.id_weights,
        stride=batch.size,
    )


def from_kjt(kjt: KeyedJaggedTensor, *, dense: Tensor, labels: Tensor, weights: Tensor | None = None) -> Batch:
    """A batch on the storage of `kjt`, with what a KeyedJaggedTensor does not hold.

    Raises:
        ValueError: the tensor's layout is not a batch's (ids other than int64, a batch size that varies by feature).
    """
    if kjt.variable_stride_per_key():
        raise ValueError("from_kjt: the batch size varies by feature; a Batch has one size for all of them")
    if kjt.values().dtype != torch.int64:
        raise ValueError(f"from_kjt: ids are {kjt.values().dtype}; make them int64 first (that copies them)")
    return Batch(
        dense=dense,
        features=tuple(kjt.keys()),
        ids=kjt.values(),
        lengths=kjt.lengths(),
        labels=labels,
        weights=weights,
        id_weights=kjt.weights_or_none(),
    )
