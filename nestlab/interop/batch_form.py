"""How a torchrec user's batch holds its parts, and the outputs of micro-batches put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from nestlab.errors import UserError

_WANTED = (
    "give a KeyedJaggedTensor, or a tuple, list or dataclass of one and of dense values [B, D] and labels [B], or the "
    "last, or neither; other whole numbers go under a key of it that no table looks up, settings on the model"
)


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """Where a batch has its parts.

    Attributes:
        kind: tuple, list, a class of one's own, or KeyedJaggedTensor: the batch is its sparse part.
        names: of a dataclass's fields or a named tuple's; None for a plain tuple or list.
        places: of the sparse part, the dense values and the labels; None: there are none.
    """

    kind: type
    names: tuple[str, ...] | None
    places: tuple[int, int | None, int | None]

    @classmethod
    def of(cls, batch: Any) -> BatchForm:
        """The KeyedJaggedTensor is the sparse part; of one or two tensors the last are the labels, the first of two the
        dense values.

        Raises:
            UserError: there is something else in it.
        """
        if isinstance(batch, KeyedJaggedTensor):
            return cls(KeyedJaggedTensor, None, (0, None, None))
        names = _names(batch)
        values = _values(batch, names)
        sparse = [i for i, value in enumerate(values) if isinstance(value, KeyedJaggedTensor)]
        tensors = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        if len(sparse) != 1 or len(tensors) > 2 or len(values) != 1 + len(tensors):
            held = ", ".join(type(value).__name__ for value in values) or "nothing"
            raise UserError(f"NestPipeTrainPipeline: a batch of {type(batch).__name__} holds {held}; {_WANTED}")
        dense, labels = (None, None, *tensors)[-2:]
        return cls(type(batch), names, (sparse[0], dense, labels))

    def apart(self, batch: Any) -> tuple[KeyedJaggedTensor, Tensor, Tensor]:
        """Sparse part, dense values and labels; where there are none [B, 0] and zeros [B]."""
        values = [batch] if self.kind is KeyedJaggedTensor else _values(batch, self.names)
        sparse, dense, labels = (None if place is None else values[place] for place in self.places)
        labels = torch.zeros(sparse.stride()) if labels is None else labels
        return sparse, torch.zeros(len(labels), 0) if dense is None else dense, labels

    def together(self, sparse: KeyedJaggedTensor, dense: Tensor, labels: Tensor) -> Any:
        """A batch of this form."""
        if self.kind is KeyedJaggedTensor:
            return sparse
        values: list[Any] = [None] * self._parts
        for place, value in zip(self.places, (sparse, dense, labels), strict=True):
            if place is not None:
                values[place] = value
        if self.names is not None:
            return self.kind(**dict(zip(self.names, values, strict=True)))
        return self.kind(values)

    @property
    def _parts(self) -> int:
        return sum(place is not None for place in self.places)

    def __str__(self) -> str:
        return self.kind.__name__ if self.kind is KeyedJaggedTensor else f"{self.kind.__name__} of {self._parts}"


def _names(batch: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(batch):
        return tuple(field.name for field in dataclasses.fields(batch))
    if isinstance(batch, tuple | list):
        return getattr(batch, "_fields", None)
    raise UserError(f"NestPipeTrainPipeline: a batch of type {type(batch).__name__}; {_WANTED}")


def _values(batch: Any, names: Sequence[str] | None) -> list[Any]:
    return list(batch) if names is None else [getattr(batch, name) for name in names]


class Made(NamedTuple):
    """What a model returned for a micro-batch.

    Attributes:
        size: its samples.
        weight: what it counts for in the mean over the batch.
    """

    size: int
    weight: float
    output: Any


def joined(made: Sequence[Made]) -> Any:
    """The output of a whole batch from those of its micro-batches; None from none.

    Tensors with a dimension are joined along the first, those without become their weighted mean; tuples, lists and
    dictionaries of them likewise. Of anything else the first one stands for all.
    """
    if len(made) <= 1:
        return made[0].output if made else None
    made = [each for each in made if each.size] or made[:1]  # an empty micro-batch adds nothing, and its mean is none
    outputs = [each.output for each in made]
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.ndim else _mean(made)
    if isinstance(first, dict):
        return {key: joined([each._replace(output=each.output[key]) for each in made]) for key in first}
    if isinstance(first, tuple | list):
        columns = zip(*outputs, strict=True)
        parts = [joined([m._replace(output=o) for m, o in zip(made, each, strict=True)]) for each in columns]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def _mean(made: Sequence[Made]) -> Tensor:
    """0-d; micro-batches without weight, whose means may be none, are left out."""
    made = [each for each in made if each.weight] or [made[0]._replace(weight=1.0)]
    return sum(each.weight * each.output for each in made) / sum(each.weight for each in made)
