"""Which kind of table each feature of a data set has: rows, or a tensor train where it has many ids."""

from __future__ import annotations

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
    """A table a feature. Under `table_kind=tt` one with at least `tt_from` known ids is a tensor train.

    Ids of any value find a row: those that `dataset` was reordered by their number, others by a hash.

    Raises:
        UserError: `table_kind=tt`, and no feature has so many ids.
    """
    if techniques.table_kind == "row":
        return [TableConfig(name, dim) for name in dataset.features]
    known = {name: known_ids(dataset, name) for name in dataset.features}
    if max(known.values(), default=0) < techniques.tt_from:
        most = max(known, key=known.get)
        raise UserError(
            f"techniques: tt_from={techniques.tt_from}: no feature has so many ids, '{most}' has the most, "
            f"{known[most]}; give tt_from={known[most]} or less, or table_kind=row"
        )
    trains = {name: _train(dataset, name, n, techniques) for name, n in known.items() if n >= techniques.tt_from}
    return [TableConfig(name, dim, tensor_train=trains.get(name)) for name in dataset.features]


def known_ids(dataset: Dataset, feature: str) -> int:
    """How many ids a feature has in all rows of the data."""
    if dataset.id_map is not None and feature in dataset.id_map.rows:
        return dataset.id_map.rows[feature]
    column = dataset.feature_columns(dataset.table)[feature]
    nested = pc.list_flatten(column) if column.type.num_fields else column
    return pc.count_distinct(nested).as_py()


def _train(dataset: Dataset, feature: str, known: int, techniques: Techniques) -> TensorTrain:
    mapped = dataset.id_map is not None and feature in dataset.id_map.rows
    rows, ids = (known, "range") if mapped else (ROWS_AN_ID * known, "hash")
    return TensorTrain(rows=rows, rank=techniques.tt_rank, ids=ids)
