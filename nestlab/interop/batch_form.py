"""How a torchrec user's batch holds its parts, and the outputs of micro-batches put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from nestlab.errors import UserError

_WANTED = "give a tuple, list or dataclass of a KeyedJaggedTensor, dense values [B, D] (or none) and labels [B]"


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """Where a batch has its three parts.

    Attributes:
        kind: tuple, list, or a class of one's own.
        names: of a dataclass's fields or a named tuple's; None for a plain tuple or list.
        places: of the sparse part, the dense values (None: there are none) and the labels.
    """

    kind: type
    names: tuple[str, ...] | None
    places: tuple[int, int | None, int]

    @classmethod
    def of(cls, batch: Any) -> BatchForm:
        """The KeyedJaggedTensor is the sparse part; of one or two tensors the last are the labels, the first of two the
        dense values.

        Raises:
            UserError: there is something else in it.
        """
        names = _names(batch)
        values = _values(batch, names)
        sparse = [i for i, value in enumerate(values) if isinstance(value, KeyedJaggedTensor)]
        tensors = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        if len(sparse) != 1 or len(tensors) not in (1, 2) or len(values) != 1 + len(tensors):
            held = ", ".join(type(value).__name__ for value in values) or "nothing"
            raise UserError(f"NestPipeTrainPipeline: a batch of {type(batch).__name__} holds {held}; {_WANTED}")
        return cls(type(batch), names, (sparse[0], tensors[0] if len(tensors) == 2 else None, tensors[-1]))

    def apart(self, batch: Any) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
        """Sparse part, dense values ([B, 0] where there are none) and labels."""
        values = _values(batch, self.names)
        sparse, dense, labels = self.places
        none = torch.zeros(len(values[labels]), 0)
        return values[sparse], none if dense is None else values[dense], values[labels]

    def together(self, sparse: KeyedJaggedTensor, dense: Tensor, labels: Tensor) -> Any:
        """A batch of this form."""
        values: list[Any] = [None] * (2 if self.places[1] is None else 3)
        for place, value in zip(self.places, (sparse, dense, labels), strict=True):
            if place is not None:
                values[place] = value
        if self.names is not None:
            return self.kind(**dict(zip(self.names, values, strict=True)))
        return self.kind(values)

    def __str__(self) -> str:
        return f"{self.kind.__name__} of {len(self.places) - (self.places[1] is None)}"


def _names(batch: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(batch):
        return tuple(field.name for field in dataclasses.fields(batch))
    if isinstance(batch, tuple | list):
        return getattr(batch, "_fields", None)
    raise UserError(f"NestPipeTrainPipeline: a batch of type {type(batch).__name__}; {_WANTED}")


def _values(batch: Any, names: Sequence[str] | None) -> list[Any]:
    return list(batch) if names is None else [getattr(batch, name) for name in names]


def joined(made: Sequence[tuple[int, Any]]) -> Any:
    """The output of a whole batch from (samples, output) of its micro-batches; None from none.

    Tensors with a dimension are joined along the first, those without become their mean, weighted by samples; tuples,
    lists and dictionaries of them likewise. Of anything else the first one stands for all.
    """
    if len(made) <= 1:
        return made[0][1] if made else None
    made = [each for each in made if each[0]] or made[:1]  # an empty micro-batch adds nothing, and its mean is none
    sizes, outputs = zip(*made, strict=True)
    first = outputs[0]
    if isinstance(first, Tensor):
        if first.ndim:
            return torch.cat(outputs)
        return sum(size * output for size, output in made) / max(sum(sizes), 1)
    if isinstance(first, dict):
        return {key: joined([(size, output[key]) for size, output in made]) for key in first}
    if isinstance(first, tuple | list):
        parts = [joined(list(zip(sizes, each, strict=True))) for each in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
