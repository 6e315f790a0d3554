"""Which kind of table each feature of a data set has: rows, or a tensor train where it has many ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from nestlab.data import Dataset
from nestlab.embedding import TableConfig
from nestlab.embedding.tensor_train import TensorTrain
from nestlab.errors import UserError
from nestlab.techniques import Techniques

# Hashed ids share rows: with eight rows an id 12 % of them do (1 − e^(−1/8)), with one 63 %; cores are twice as large
# then, by the cube root.
ROWS_AN_ID = 8


def tables_of(dataset: Dataset, dim: int, techniques: Techniques) -> list[TableConfig]:
    """A table a feature; see `trains_of`."""
    return trains_of(dataset, [TableConfig(name, dim) for name in dataset.features], techniques)


def trains_of(dataset: Dataset, tables: Sequence[TableConfig], techniques: Techniques) -> list[TableConfig]:
    """`tables`, named after features of a data set. Under `table_kind=tt` one with at least `tt_from` known ids is a
    tensor train.

    Ids of any value find a row: those that `dataset` was reordered by, or that its convention numbers, by their number,
    others by a hash.

    Raises:
        UserError: `table_kind=tt`, and no feature has so many ids.
    """
    if techniques.table_kind == "row":
        return list(tables)
    known = {each.name: known_ids(dataset, each.name) for each in tables if each.name in dataset.features}
    mapped = dataset.sizes if dataset.id_map is None else dataset.id_map.rows
    return as_trains(tables, known, techniques, mapped=mapped)


def as_trains(
    tables: Sequence[TableConfig],
    known: Mapping[str, int],
    techniques: Techniques,
    *,
    least: int = 0,
    mapped: Iterable[str] = (),
) -> list[TableConfig]:
    """`tables`; under `table_kind=tt` those with many known ids as tensor trains.

    Args:
        known: ids by name of the table; of those left out few.
        least: known ids from which a table is one; 0: `tt_from`.
        mapped: the tables whose ids are numbers of rows already.

    Raises:
        UserError: `table_kind=tt`, and no table has so many ids.
    """
    if techniques.table_kind == "row":
        return list(tables)
    least = least or techniques.tt_from
    if max(known.values(), default=0) < least:
        most = max(known, key=known.get)
        raise UserError(
            f"techniques: tt_from={least}: no feature has so many ids, '{most}' has the most, "
            f"{known[most]}; give tt_from={known[most]} or less, or table_kind=row"
        )
    trains = {name: _train(n, techniques, name in mapped) for name, n in known.items() if n >= least}
    return [replace(each, tensor_train=trains.get(each.name)) for each in tables]


def known_ids(dataset: Dataset, feature: str) -> int:
    """How many ids a feature has in all rows of the data."""
    if dataset.id_map is not None and feature in dataset.id_map.rows:
        return dataset.id_map.rows[feature]
    if feature in dataset.sizes:
        return dataset.sizes[feature]
    column = dataset.feature_columns(dataset.table)[feature]
    nested = pc.list_flatten(column) if column.type.num_fields else column
    return pc.count_distinct(nested).as_py()


def _train(known: int, techniques: Techniques, mapped: bool) -> TensorTrain:
    rows, ids = (known, "range") if mapped else (ROWS_AN_ID * known, "hash")
    return TensorTrain(rows=rows, rank=techniques.tt_rank, ids=ids)
