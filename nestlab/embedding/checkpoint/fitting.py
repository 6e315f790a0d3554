"""Whether a checkpoint fits a store: refused, or taken with a warning that says what is dropped."""

from __future__ import annotations

import warnings

import numpy as np

from nestlab.embedding.checkpoint.manifest import Header, TableEntry
from nestlab.errors import UserError


def check_fits(saved: Header, mine: Header) -> None:
    """
    Raises:
        UserError: tables, widths, optimizer or dtype differ, or a sketch cannot be taken over.
    """
    theirs, ours = _by_name(saved), _by_name(mine)
    if unknown := [name for name in theirs if name not in ours]:
        raise UserError(f"load: the store has no table {_names(unknown)}, which the checkpoint has; add it")
    if lacking := [name for name in ours if name not in theirs]:
        raise UserError(f"load: the checkpoint has no table {_names(lacking)}, which the store has; leave it out")
    for name, table in theirs.items():
        if table.dim != ours[name].dim:
            raise UserError(f"load: table '{name}' has dim {ours[name].dim}, the checkpoint's {table.dim}; give that")
    if saved.optimizer != mine.optimizer or any(t.state_width != ours[n].state_width for n, t in theirs.items()):
        raise UserError(
            f"load: the checkpoint holds states of {saved.optimizer}, and the store's optimizer is {mine.optimizer}; "
            "use the checkpoint's"
        )
    if saved.dtype != mine.dtype:
        raise UserError(f"load: the checkpoint holds {saved.dtype}, the store {mine.dtype}; use dtype={saved.dtype}")
    _check_sketch(saved, mine)
    _warn(saved, mine)


def takes_admission(saved: Header, mine: Header) -> bool:
    """Whether the counts of keys without a row can be taken over."""
    return saved.features["admit"] == mine.features["admit"] != "none"


def reorder(state: dict[str, np.ndarray], saved: tuple[str, ...], mine: list[str]) -> dict[str, np.ndarray]:
    """What admission counted, its tables in another order; a sketch is as it is."""
    if "offsets" not in state or list(saved) == mine:
        return state
    offsets, order = state["offsets"], [saved.index(name) for name in mine]
    runs = [slice(offsets[table], offsets[table + 1]) for table in order]
    moved = {name: np.concatenate([values[run] for run in runs]) for name, values in state.items() if name != "offsets"}
    return {**moved, "offsets": np.concatenate(([0], np.cumsum(np.diff(offsets)[order])))}


def _check_sketch(saved: Header, mine: Header) -> None:
    """The sketch hashes a table by its place."""
    if not takes_admission(saved, mine) or saved.features["admit"] != "sketch":
        return
    for dim in dict.fromkeys(table.dim for table in saved.tables):
        order = [[table.name for table in header.tables if table.dim == dim] for header in (saved, mine)]
        if order[0] != order[1]:
            raise UserError(f"load: the admission sketch has the tables {_names(order[0])} in this order; give them so")


def _warn(saved: Header, mine: Header) -> None:
    for name, table in _by_name(saved).items():
        if saved.seed != mine.seed or table.bound != _by_name(mine)[name].bound:
            warnings.warn(
                f"load: seed or bound differ: new ids of table '{name}' start from other weights", stacklevel=4
            )
            break
    before, now = saved.features["admit"], mine.features["admit"]
    if before != now and now != "none":
        warnings.warn(f"load: saved under admit={before}; under {now} every id is counted from nothing", stacklevel=4)
    elif before != now:
        warnings.warn(f"load: saved under admit={before}; what it counted is dropped", stacklevel=4)
    before, now = saved.features["evict"], mine.features["evict"]
    if before != now and now == "score":
        warnings.warn(f"load: saved under evict={before}; the scores of all rows start from nothing", stacklevel=4)
    elif before != now and before == "score":
        warnings.warn(f"load: saved under evict=score; under {now} the scores are dropped", stacklevel=4)


def _by_name(header: Header) -> dict[str, TableEntry]:
    return {table.name: table for table in header.tables}


def _names(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
