"""What a reordering does for a tensor-train table: distinct rows and distinct prefixes in a batch.

Count them on rows that the order was not made from, or on shuffled ones. An id that occurs once was seen in one batch
only, with whatever else that batch held: over the training split in its own order the communities remember the
batches, and save work even where the samples are independent of one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from nestlab.data.dataset import Dataset
from nestlab.data.gathering import Gatherer
from nestlab.data.loader import jagged_columns
from nestlab.data.planted import hash64
from nestlab.data.reorder_map import IdMap
from nestlab.embedding.tensor_train.shape import TTShape, suggest

Rows = Callable[[np.ndarray], np.ndarray]
HASHED = "hashed"


def redundancy(rows_n: np.ndarray, shape: TTShape) -> tuple[float, float]:
    """n_u / nnz and n_p / nnz of a batch's rows [nnz] int64: distinct rows, and distinct prefixes of all digits but the
    last. 0 for a batch without ids."""
    if not len(rows_n):
        return 0.0, 0.0
    unique = np.unique(rows_n)
    return len(unique) / len(rows_n), len(np.unique(unique // shape.row_factors[-1])) / len(rows_n)


def effect(
    dataset: Dataset,
    feature: str,
    maps: dict[str, IdMap],
    *,
    split: str = "heldout",
    batch_size: int = 4096,
    shuffle: bool = False,
    cores: int = 3,
) -> pd.DataFrame:
    """n_u / nnz and n_p / nnz over the whole batches of a split, by reordering; beside them ids `hashed` to rows.

    Every reordering is given the table that it asks for, and `hashed` the largest of them; the shape is what
    `nestlab.embedding.tensor_train.shape.suggest` proposes.

    Returns:
        a row each: `order`, `rows`, `row_factors`, `batches`, `unique` (median over the batches), `prefixes`
        (median), `prefixes_p10` and `prefixes_p90`.
    """
    found = {name: id_map.features[feature] for name, id_map in maps.items()}
    largest = max(each.rows for each in found.values())
    orders: dict[str, tuple[Rows, TTShape]] = {HASHED: (_hash_into(largest), suggest(largest, 64, cores))}
    orders |= {name: (each, suggest(each.rows, 64, cores)) for name, each in found.items()}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in orders}
    for ids in _batches(dataset, feature, split, batch_size, shuffle):
        for name, (rows, shape) in orders.items():
            shares[name].append(redundancy(rows(ids), shape))
    return pd.DataFrame([_row(name, orders[name][1], shares[name]) for name in orders])


def _row(order: str, shape: TTShape, shares: list[tuple[float, float]]) -> dict[str, object]:
    unique, prefixes = np.array(shares).reshape(-1, 2).T
    low, middle, high = np.quantile(prefixes, (0.1, 0.5, 0.9)) if len(prefixes) else (np.nan,) * 3
    return {
        "order": order,
        "rows": shape.rows,
        "row_factors": " × ".join(map(str, shape.row_factors)),
        "batches": len(prefixes),
        "unique": float(np.median(unique)) if len(unique) else np.nan,
        "prefixes": middle,
        "prefixes_p10": low,
        "prefixes_p90": high,
    }


def _hash_into(rows: int) -> Rows:
    return lambda ids: ((hash64(0, ids) >> np.uint64(32)) * np.uint64(rows) >> np.uint64(32)).astype(np.int64)


def _batches(dataset: Dataset, feature: str, split: str, size: int, shuffle: bool) -> Iterator[np.ndarray]:
    """The ids [n] of each whole batch; shuffled by a generator of its own."""
    first, stop = dataset.rows(split)
    places = np.arange(first, stop)
    if shuffle:
        np.random.default_rng(0).shuffle(places)
    gathered = Gatherer(dataset.table)
    for begin in range(0, len(places) - size + 1, size):
        columns = dataset.feature_columns(gathered(places[begin : begin + size]))
        yield jagged_columns([columns[feature]])[0]
