"""Rows that a pipeline has fetched, for the tiered collection that a model's forward is about to ask.

They travel in a context variable, for the time of one forward, in the thread that runs it: no module's forward is
replaced, and nothing of a pipeline stays on a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from torch import nn
from torchrec import KeyedJaggedTensor

from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.embedding import Embedded


class _Given(NamedTuple):
    tables: nn.Module
    features: KeyedJaggedTensor
    embedded: Embedded


_given: ContextVar[_Given | None] = ContextVar("nestlab_given_rows", default=None)


@contextmanager
def given(tables: nn.Module, features: KeyedJaggedTensor, embedded: Embedded) -> Iterator[None]:
    """While the block runs, `tables` gives `embedded` for `features`."""
    token = _given.set(_Given(tables, features, embedded))
    try:
        yield
    finally:
        _given.reset(token)


def taken(tables: nn.Module, features: KeyedJaggedTensor) -> Embedded | None:
    """What is given for `features`; None: nobody gives anything, the tables are to look up themselves.

    Raises:
        UserError: others are given: the rows of these are not there.
    """
    found = _given.get()
    if found is None or found.tables is not tables:
        return None
    if not _same(found.features, features):
        raise UserError(
            "the model looks its tables up with other features than its batch's KeyedJaggedTensor, and a pipeline "
            "fetches rows before the model runs; change features in the data loader, not in forward"
        )
    return found.embedded


def _same(first: KeyedJaggedTensor, second: KeyedJaggedTensor) -> bool:
    """Whether both are on one storage, as after `.to` the device where they are."""
    return first is second or (
        first.keys() == second.keys()
        and first.values().numel() == second.values().numel()
        and first.values().data_ptr() == second.values().data_ptr()
        and first.lengths().data_ptr() == second.lengths().data_ptr()
    )
