"""What makes a table one of tensor-train kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nestlab.embedding.tensor_train.shape import TTShape, suggest
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.embedding.config import TableConfig

_RULES = ("admit_threshold", "evict_after", "default_value")


@dataclass(frozen=True)
class TensorTrain:
    """A table of a fixed number of rows, held as cores. `TableConfig.tensor_train` takes it; dim is the table's.

    Attributes:
        rows: M.
        cores: d, 2 to 4.
        rank: between all cores, or d − 1 of them.
        shape: in place of a suggested one; `cores` and `rank` then say nothing.
        ids: `hash`: any int64 id has a row, a hash modulo M, and some ids share one; `range`: ids are 0 … M − 1.
        hot_rows: rows held decompressed, those used most often; 0: none. See `hot_rows`.
        hot_every: training batches from one choice of hot rows to the next.
        hot_decay: what a count of uses is multiplied with at each choice; 1: nothing is forgotten.
    """

    rows: int
    cores: int = 3
    rank: int | tuple[int, ...] = 32
    shape: TTShape | None = None
    ids: Literal["hash", "range"] = "hash"
    hot_rows: int = 0
    hot_every: int = 1000
    hot_decay: float = 1.0

    def shape_of(self, dim: int) -> TTShape:
        """The shape for rows of `dim` weights: the one given, or one suggested.

        Raises:
            UserError: see `suggest`.
        """
        return self.shape or suggest(self.rows, dim, self.cores, self.rank)

    def check(self, table: TableConfig) -> None:
        """Raises UserError where this does not fit the table it belongs to; `TableConfig` calls it."""
        where = f"table '{table.name}': tensor_train"
        self._check_types(where)
        if self.ids not in ("hash", "range"):
            raise UserError(f"{where} has unknown ids='{self.ids}'; use hash or range")
        if not 1 <= self.rows <= 1 << 62:
            raise UserError(f"{where} has rows={self.rows}; give 1 … 2^62")
        shape = self.shape_of(table.dim)
        if shape.dim != table.dim or shape.rows < self.rows:
            least = f"{self.rows} × {table.dim}"
            raise UserError(f"{where} has a shape of {shape.rows} rows × {shape.dim}; give one of at least {least}")
        self._check_hot_rows(where)
        if table.init_bound == 0:
            raise UserError(f"{where} cannot start at init_bound=0: cores of zeros never train; give a number above 0")
        for rule in _RULES:
            if getattr(table, rule) is not None:
                raise UserError(f"{where} has a row for every id from the start; leave out {rule}")

    def _check_types(self, where: str) -> None:
        for name in ("rows", "cores", "hot_rows", "hot_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise UserError(f"{where} has {name}={value!r}; give a whole number")
        ranks = self.rank if isinstance(self.rank, tuple | list) else (self.rank,)
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise UserError(f"{where} has rank={self.rank!r}; give a whole number, or one between any two cores")
        if self.shape is not None and not isinstance(self.shape, TTShape):
            raise UserError(f"{where} has shape={self.shape!r}; give a TTShape, or none")

    def _check_hot_rows(self, where: str) -> None:
        if not 0 <= self.hot_rows <= self.rows:
            raise UserError(f"{where} has hot_rows={self.hot_rows}; give 0 … {self.rows}")
        if self.hot_every < 1:
            raise UserError(f"{where} has hot_every={self.hot_every}; give at least 1 batch")
        if not 0 <= self.hot_decay <= 1:
            raise UserError(f"{where} has hot_decay={self.hot_decay}; give a number in 0 … 1")
