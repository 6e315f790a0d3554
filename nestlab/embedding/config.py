"""What a table is, and how tables of equal width share one address space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nestlab.embedding.kernels import TABLE_BITS
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.embedding.tensor_train.config import TensorTrain

MAX_THRESHOLD = 1 << 31  # of admission: a sketch counts in 32 bits


@dataclass(frozen=True)
class TableConfig:
    """One embedding table; it has no size: rows appear when ids do (but see `tensor_train`).

    Attributes:
        name: unique among the tables of a store; with the id and the seed it determines initial weights.
        dim: weights a row.
        features: the batch's features that look up this table; None stands for one feature called as the table.
        pooling: of the rows of a bag: `sum` (weighted where the batch has id_weights), `mean`, or `none` (a sequence).
        init_bound: initial weights are uniform in ±init_bound; None stands for 1/√dim.
        initial_rows: keys that fit before the index grows for the first time.
        admit_threshold, evict_after, default_value: of this table; None stands for the store's `FeatureRules`.
        tensor_train: makes it a tensor-train table, of a fixed number of rows.
    """

    name: str
    dim: int
    features: tuple[str, ...] | None = None
    pooling: Literal["sum", "mean", "none"] = "sum"
    init_bound: float | None = None
    initial_rows: int = 1024
    admit_threshold: float | None = None
    evict_after: int | None = None
    default_value: float | None = None
    tensor_train: TensorTrain | None = None

    def __post_init__(self) -> None:
        features = (self.name,) if self.features is None else tuple(self.features)
        object.__setattr__(self, "features", features)
        if not self.name:
            raise UserError("TableConfig: a table needs a name; give name='…'")
        if self.dim < 1:
            raise UserError(f"table '{self.name}': dim is {self.dim}; give at least 1")
        if not features or len(set(features)) != len(features):
            raise UserError(f"table '{self.name}': features {features} are empty or repeat; name each feature once")
        if self.pooling not in ("sum", "mean", "none"):
            raise UserError(f"table '{self.name}': unknown pooling '{self.pooling}'; use sum, mean or none")
        if self.init_bound is not None and not (self.init_bound >= 0 and math.isfinite(self.init_bound)):
            raise UserError(f"table '{self.name}': init_bound is {self.init_bound}; give a finite number ≥ 0, or None")
        if self.initial_rows < 1:
            raise UserError(f"table '{self.name}': initial_rows is {self.initial_rows}; give at least 1")
        self._check_rules()
        if self.tensor_train is not None:
            if not hasattr(self.tensor_train, "shape_of"):
                raise UserError(
                    f"table '{self.name}': tensor_train is {self.tensor_train!r}; give a TensorTrain, or None"
                )
            self.tensor_train.check(self)

    def _check_rules(self) -> None:
        threshold, after, default = self.admit_threshold, self.evict_after, self.default_value
        if threshold is not None and not 0 <= threshold <= MAX_THRESHOLD:
            raise UserError(f"table '{self.name}': admit_threshold is {threshold}; give 0 … {MAX_THRESHOLD}, or None")
        if after is not None and not (isinstance(after, int) and after >= 1):
            raise UserError(f"table '{self.name}': evict_after is {after}; give a whole number of batches ≥ 1, or None")
        if default is not None and not math.isfinite(default):
            raise UserError(f"table '{self.name}': default_value is {default}; give a finite number, or None")

    @property
    def bound(self) -> float:
        """The bound of initial weights, default filled in."""
        return 1.0 / math.sqrt(self.dim) if self.init_bound is None else self.init_bound


@dataclass(frozen=True)
class TableGroup:
    """Tables of equal dim: one index, one arena, one address space.

    Attributes:
        number: place in `EmbeddingStore.groups`.
        dim: weights a record.
        tables: in the order in which the store was given them; a table's place here is its number in a key.
        state_width: optimizer states a record.
    """

    number: int
    dim: int
    tables: tuple[TableConfig, ...]
    state_width: int

    @property
    def record_width(self) -> int:
        """Elements of a record, `[weight | optimizer state]`."""
        return self.dim + self.state_width


def group_tables(tables: Sequence[TableConfig], state_width) -> tuple[TableGroup, ...]:
    """Groups by dim, in order of first appearance. `state_width(dim)` is the optimizer's.

    Raises:
        UserError: two tables have one name, a feature belongs to two tables, or there is no table.
    """
    if not tables:
        raise UserError("EmbeddingStore: no tables; give at least one TableConfig")
    _refuse_repeats("table", [table.name for table in tables], "give each table a name of its own")
    _refuse_repeats("feature", [f for table in tables for f in table.features], "a feature looks up one table")
    by_dim: dict[int, list[TableConfig]] = {}
    for table in tables:
        if table.tensor_train is None:
            by_dim.setdefault(table.dim, []).append(table)
    if max(map(len, by_dim.values()), default=0) >= 1 << TABLE_BITS:
        raise UserError(f"EmbeddingStore: more than {(1 << TABLE_BITS) - 1} tables of one dim; merge some")
    return tuple(TableGroup(number, dim, tuple(by_dim[dim]), state_width(dim)) for number, dim in enumerate(by_dim))


def _refuse_repeats(kind: str, names: list[str], remedy: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"EmbeddingStore: {kind} '{name}' appears twice; {remedy}")
        seen.add(name)
