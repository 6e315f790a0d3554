"""What one rank tells the owner of tables about its batch: a header of counts, then ids, lengths and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.embedding.config import TableConfig
from nestlab.errors import UserError
from nestlab.exchange.table_wise_routed import TableBags

_WORD = 8
_FIXED = 5  # words of a header before the tables'
_LENGTH_TYPES = (np.uint8, np.uint16, np.uint32, np.int64)  # of lengths on the way: the narrowest that holds them


@dataclass(frozen=True, eq=False)
class TablePart:
    """One rank's ids for one table, feature by feature; in host memory.

    Attributes:
        ids: [nnz] int64.
        lengths: [F_t·B] int64.
        weights: [nnz] float32 or None.
    """

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class Asked:
    """What a rank asks of the tables' owners for its batch: a part a table, and the ids of each feature [T][F_t]."""

    parts: tuple[TablePart, ...]
    ids: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, batch: Batch, tables: Sequence[TableConfig]) -> Asked:
        """Views of the batch where a table's features lie together there in the table's order.

        Raises:
            UserError: the batch lacks a feature.
        """
        columns = _columns(batch.features, tables)
        lengths = batch.feature_lengths().cpu()
        ends = [0, *torch.cumsum(lengths.sum(dim=1), 0).tolist()]
        ids = batch.ids.cpu()
        weights = None if batch.id_weights is None else batch.id_weights.cpu().to(torch.float32)
        parts = []
        for table, own in zip(tables, columns, strict=True):
            runs = [(ends[c], ends[c + 1]) for c in own]
            weighted = weights if table.pooling == "sum" else None
            of_table = _take(lengths, [(c, c + 1) for c in own]).reshape(-1)
            parts.append(TablePart(_take(ids, runs), of_table, None if weighted is None else _take(weighted, runs)))
        return cls(tuple(parts), tuple(tuple(ends[c + 1] - ends[c] for c in own) for own in columns))

    def rows(self, tables: Sequence[TableConfig], size: int) -> tuple[tuple[int, ...], ...]:
        """[T][F_t] rows that come back for each feature, of a batch of `size` samples."""
        return tuple(
            ids if table.pooling == "none" else (size,) * len(ids) for table, ids in zip(tables, self.ids, strict=True)
        )


def _columns(features: tuple[str, ...], tables: Sequence[TableConfig]) -> list[list[int]]:
    """The places of each table's features in the batch."""
    places = {feature: column for column, feature in enumerate(features)}
    if missing := [f"{f} (table {table.name})" for table in tables for f in table.features if f not in places]:
        raise UserError(f"the batch lacks feature(s) {', '.join(missing)}; it has {', '.join(features)}")
    return [[places[f] for f in table.features] for table in tables]


def _take(values: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
    """The runs of `values` joined; a view where each begins where the one before ends."""
    if all(before[1] == after[0] for before, after in pairwise(runs)):
        return values[runs[0][0] : runs[-1][1]]
    return torch.cat([values[begin:end] for begin, end in runs])


@dataclass(frozen=True, eq=False)
class Header:
    """The first message of a rank to an owner, in 8-byte words; what follows has a form that it tells.

    Attributes:
        present: the sender has a batch.
        weight: the sum of its samples' weights.
        size: its samples, B.
        weighted: its ids have weights.
        length_type: place in the list of widths of lengths on the way.
        ids: [T_o], ids for each of the owner's tables.
    """

    present: bool
    weight: float
    size: int
    weighted: bool
    length_type: int
    ids: tuple[int, ...]

    @classmethod
    def of(cls, batch: Batch, parts: Sequence[TablePart], present: bool) -> Header:
        most = max((int(part.lengths.max()) for part in parts if part.lengths.numel()), default=0)
        width = next(i for i, kind in enumerate(_LENGTH_TYPES) if most <= np.iinfo(kind).max)
        ids = tuple(part.ids.numel() for part in parts)
        return cls(present, batch.total_weight, batch.size, batch.id_weights is not None, width, ids)

    @staticmethod
    def words(tables: int) -> int:
        return _FIXED + tables

    def pack(self) -> np.ndarray:
        weight = int(np.float64(self.weight).view(np.int64))
        return np.array([self.present, weight, self.size, self.weighted, self.length_type, *self.ids], dtype=np.int64)

    @classmethod
    def unpack(cls, words: np.ndarray) -> Header:
        present, weight, size, weighted, width, *ids = words.tolist()
        return cls(bool(present), float(np.int64(weight).view(np.float64)), size, bool(weighted), width, tuple(ids))


@dataclass(frozen=True, eq=False)
class Form:
    """Where the fields of a message lie: ids, then lengths, then weights, each from a whole word on.

    Attributes:
        ids, bags: [T_o] elements of each of the owner's tables.
        weighted: [T_o], whether weights travel with its ids.
    """

    ids: tuple[int, ...]
    bags: tuple[int, ...]
    weighted: tuple[bool, ...]
    length_type: type

    @classmethod
    def of(cls, header: Header, tables: Sequence[TableConfig]) -> Form:
        return cls(
            header.ids,
            tuple(len(table.features) * header.size for table in tables),
            tuple(header.weighted and table.pooling == "sum" for table in tables),
            _LENGTH_TYPES[header.length_type],
        )

    @property
    def weights(self) -> tuple[int, ...]:
        """[T_o] weights of each table."""
        return tuple(n if has else 0 for n, has in zip(self.ids, self.weighted, strict=True))

    @property
    def _ends(self) -> tuple[int, int, int]:
        """Words up to the end of each field."""
        ids = sum(self.ids)
        lengths = ids + _words(sum(self.bags) * np.dtype(self.length_type).itemsize)
        return ids, lengths, lengths + _words(sum(self.weights) * 4)

    @property
    def words(self) -> int:
        return self._ends[-1]

    def fields(self, message: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of a message [words] int64: ids, lengths and weights of all tables, to write to and to read."""
        ids, lengths, weights = self._ends
        return (
            message[:ids],
            message[ids:lengths].view(self.length_type)[: sum(self.bags)],
            message[lengths:weights].view(np.float32)[: sum(self.weights)],
        )


def _words(nbytes: int) -> int:
    return -(-nbytes // _WORD)


def pack(parts: Sequence[TablePart], form: Form) -> np.ndarray:
    """A message [words] int64 of the parts, one a table of the owner."""
    message = np.zeros(form.words, np.int64)  # what pads the fields travels too
    ids, lengths, weights = form.fields(message)
    _fill(ids, [part.ids for part in parts])
    _fill(lengths, [part.lengths for part in parts])
    _fill(weights, [part.weights for part in parts if part.weights is not None])
    return message


def _fill(into: np.ndarray, pieces: Sequence[Tensor]) -> None:
    at = 0
    for piece in pieces:
        into[at : at + piece.numel()] = piece.numpy()
        at += piece.numel()


def unpack(message: np.ndarray, form: Form) -> list[TablePart]:
    """The parts [T_o] of a message; views of it, but for the lengths."""
    ids, lengths, weights = form.fields(message)
    by_table = zip(
        torch.from_numpy(ids).split(form.ids),
        torch.from_numpy(lengths.astype(np.int64)).split(form.bags),
        torch.from_numpy(weights).split(form.weights),
        form.weighted,
        strict=True,
    )
    return [TablePart(i, n, w if weighted else None) for i, n, w, weighted in by_table]


def join(number: int, table: TableConfig, parts: Sequence[TablePart]) -> TableBags:
    """What the owner looks up for the parts [W] of all ranks. Of a single part no copy is made."""
    weights = None
    if any(part.weights is not None for part in parts):
        weights = _joined([torch.ones(p.ids.numel()) if p.weights is None else p.weights for p in parts])
    rows = tuple(part.ids.numel() if table.pooling == "none" else part.lengths.numel() for part in parts)
    return TableBags(number, _joined([p.ids for p in parts]), _joined([p.lengths for p in parts]), weights, rows)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
