"""Repeats over seeds that one run made: mean, spread and interval of each setting, and its difference to a baseline.

What `nestlab results compare` says of run folders, of a table in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nestlab.errors import UserError
from nestlab.results import intervals
from nestlab.results.comparison import STATISTICS, statistics

if TYPE_CHECKING:
    import pandas

SEED = "seed"


def repeats(
    frame: pandas.DataFrame,
    by: str,
    metrics: Sequence[str],
    baseline: str | None = None,
    *,
    same: Sequence[str] = (),
    method: str = "t",
) -> pandas.DataFrame:
    """A row a metric and setting: `metric`, `by`, n, mean, sd (n − 1), low and high (95 %), and against the baseline
    difference, diff_low, diff_high, pairing: seed by seed where both have run at least two of the same seeds.

    Args:
        frame: a row a training, with its setting, `seed` and metrics; NaN where a figure has no value.
        by: the column that tells settings apart.
        baseline: the setting that comes first; None: the one of the first row.
        same: columns of data, split and protocol, which must be equal in all rows.
        method: `t` (Student) or `bootstrap`.

    Raises:
        UserError: a column or the baseline is not there, rows do not compare, or a setting has a seed twice.
    """
    import pandas

    _check(frame, [by, SEED, *metrics, *same], same, method)
    settings = list(dict.fromkeys(frame[by]))
    first = settings[0] if baseline is None and settings else baseline
    if settings and first not in settings:
        raise UserError(f"repeats: no setting '{first}' to compare with: there is {', '.join(map(str, settings))}")
    settings.sort(key=lambda setting: setting != first)
    rows = []
    for metric in metrics:
        found = statistics([_by_seed(frame[frame[by] == setting], metric, setting) for setting in settings], method)
        rows += [[metric, setting, *row] for setting, row in zip(settings, found, strict=True)]
    return pandas.DataFrame(rows, columns=[STATISTICS[0], by, *STATISTICS[1:]])


def _check(frame: pandas.DataFrame, columns: Sequence[str], same: Sequence[str], method: str) -> None:
    if method not in intervals.METHODS:
        raise UserError(f"interval '{method}': choose one of {', '.join(intervals.METHODS)}")
    if missing := [name for name in columns if name not in frame]:
        raise UserError(f"repeats: no column '{missing[0]}': there is {', '.join(map(str, frame.columns))}")
    for name in same:
        if len(values := list(dict.fromkeys(frame[name].astype(str)))) > 1:
            raise UserError(f"repeats: these rows do not compare: their {name} differs: {values[0]}, {values[1]}")


def _by_seed(rows: pandas.DataFrame, metric: str, setting: object) -> dict[int, float]:
    """The same seed twice is the same training twice: counting both would make an interval narrower than it is."""
    if (twice := rows[SEED][rows[SEED].duplicated()]).size:
        raise UserError(f"repeats: '{setting}' has seed {twice.iloc[0]} twice; keep one of the rows")
    pairs = zip(rows[SEED].tolist(), rows[metric].astype(float).tolist(), strict=True)
    return {seed: value for seed, value in pairs if math.isfinite(value)}
