"""`bench data`: how fast raw files are prepared, in how much memory, and how fast the loader reads the result."""

from __future__ import annotations

from nestlab.errors import UserError


def run(rows: str = "2_000_000,20_000_000") -> dict:
    """Both halves, see `data_prepare` and `data_loader`; some minutes and 8 GB of disk by default.

    Args:
        rows: sizes of the twin that is prepared, separated by commas.

    Raises:
        UserError: `rows` are no numbers.
    """
    from nestlab.benchmarks.data_loader import run_loader
    from nestlab.benchmarks.data_prepare import Scale, run_prepare

    try:
        scale = Scale(tuple(int(size) for size in str(rows).split(",")))
    except ValueError as error:
        raise UserError(f"--rows {rows}: write numbers, such as 2000000,20000000") from error
    prepared, of_preparing = run_prepare(scale)
    loaded, of_loading = run_loader()
    return {
        "bench": "data",
        "how": "the twin of KuaiRand-27K, from its files to the open data set, in a process of its own; then Batches "
        "of 4,096 Criteo samples on one thread",
        "rows": [{"half": "prepare", **row} for row in prepared] + [{"half": "loader", **row} for row in loaded],
        "summary": of_preparing | of_loading,
    }
