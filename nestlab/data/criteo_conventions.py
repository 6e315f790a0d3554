"""How raw Criteo values become a model's inputs, by the names under which results are published.

Numbers of ids, and with them AUC, differ between conventions, so a result carries the name of its own. What a name
stands for here is the preprocessing of values and, where the source splits by days, its split (`criteo_splits`); where
it splits at random, the split is by time, which the name says. Sources: dlrm's data_utils; torchrec's preprocessing of
the 1TB logs for MLPerf; BARS (Criteo_x1, Criteo_x4) and FuxiCTR's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nestlab.data.planted import hash64
from nestlab.errors import UserError

MISSING = -(2**40)  # stands for a missing value; neither a raw hash nor an int32
CAP_1TB = 40_000_000

# Lookups a row of the 1TB logs' 26 tables in MLPerf's DLRM-DCNv2.
MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


@dataclass(frozen=True)
class Convention:
    """What is done to the raw values.

    Attributes:
        dense: `log1p`: log(1 + max(x, 0)); `log_shift`: log(x − min + 2), min of the column in that input file;
            `bins`: floor(ln(x)²) above 2, else x, as one more category, so that there are no dense values.
        first_id: the number of the first category in the order of appearance; None: ids are the raw hashes.
        min_count: categories seen less often share the number `first_id` − 1.
        seen: which rows categories are counted in: `all` or `train`; one that is not there is a rare one.
        cap: ids are taken modulo this; None: as they are.
        lookups: ids a row and table; more than one: by `multi_hot`.
        halves: what the two halves of the last day are called as splits, that which figures are of first; empty: the
            split is by time.
        says: what is added to the name in `DatasetInfo.convention`.
    """

    name: str
    dense: str = "log1p"
    first_id: int | None = None
    min_count: int = 1
    seen: str = "all"
    cap: int | None = None
    lookups: tuple[int, ...] = (1,) * 26
    halves: tuple[str, ...] = ()
    says: str = ""


CONVENTIONS = {
    each.name: each
    for each in (
        Convention("dlrm-log1p"),
        # Missing categories are one more category, as an empty field read as the hash 0 is there.
        Convention("dlrm", first_id=0, cap=CAP_1TB, halves=("test", "validation")),
        Convention(
            "mlperf",
            "log_shift",
            first_id=2,
            min_count=3,
            cap=CAP_1TB,
            lookups=MULTI_HOT,
            halves=("validation", "test"),
            says="multi-hot, seed 0",
        ),
        Convention("x4_001", "bins", first_id=1, min_count=10, seen="train", says="values only"),
        # The source gives the splits and a count of 1; its dense values are not told, so they are those of dlrm.
        Convention("criteo_x1", first_id=1, min_count=1, seen="train", says="values only; dense log1p"),
    )
}
DEFAULT = next(iter(CONVENTIONS))


def convention(name: str) -> Convention:
    """
    Raises:
        UserError: there is none of this name.
    """
    if name not in CONVENTIONS:
        raise UserError(f"convention='{name}': choose one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def bins(values_n: np.ndarray) -> np.ndarray:
    """[n] int64: floor(ln(x)²) for x > 2, else x: what FuxiCTR's code does with Criteo_x4's integers."""
    large = values_n > 2
    logs = np.log(np.where(large, values_n, 3).astype(np.float64))
    return np.where(large, np.floor(logs * logs).astype(np.int64), values_n)


def multi_hot(ids_bt: np.ndarray, lookups: Sequence[int], rows: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """One id a row and table → `lookups` of them: the id itself first, then others drawn uniformly below `rows`.

    MLPerf's rule, by which an id brings the same others along wherever it occurs. There they are drawn once for the
    whole table; here they are a hash of (seed, table, place, id), since a table of 40 million by 100 numbers is 16 GB:
    the same law, other draws.

    Args:
        ids_bt: [B, T] int64.

    Returns:
        T arrays [B, lookups of the table] int64.
    """
    made = []
    for table, (count, size) in enumerate(zip(lookups, rows, strict=True)):
        ids = ids_bt[:, table]
        places = [ids]
        for place in range(1, count):
            stream = (seed * len(lookups) + table) * 1000 + place
            places.append((hash64(stream, ids) % np.uint64(size)).astype(np.int64))
        made.append(np.stack(places, axis=1))
    return made
