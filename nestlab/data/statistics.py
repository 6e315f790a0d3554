"""Statistics of columns, as rows of the tables that `nestlab data describe` prints."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc


def dense(name: str, column: pa.ChunkedArray) -> dict[str, object]:
    extremes = pc.min_max(column)
    median = pc.quantile(column, q=0.5)[0].as_py()
    negative = pc.sum(pc.less(column, 0)).as_py() or 0
    return {
        "column": name,
        "missing": column.null_count / len(column),
        "negative": negative / len(column),
        "min": extremes["min"].as_py(),
        "median": median,
        "max": extremes["max"].as_py(),
    }


def categorical(name: str, column: pa.ChunkedArray) -> dict[str, object]:
    """Of a column of ids, or of lists of ids: then every id counts, and a list is missing as a whole."""
    values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    counts = pc.value_counts(values.drop_null()).field("counts").to_numpy()
    present = int(counts.sum())
    return {
        "column": name,
        "missing": column.null_count / len(column),
        "unique": len(counts),
        "top_share": counts.max() / present if present else 0.0,
        "singletons": float((counts == 1).mean()) if present else 0.0,
    }


def frame(rows: dict[str, int], *names: str) -> pd.DataFrame:
    """A table of two columns from counts by name."""
    return pd.DataFrame(sorted(rows.items()), columns=list(names))
