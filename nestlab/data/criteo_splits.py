"""Which rows of Criteo train and which are held out, under a convention.

Two of them hold a day out and halve it. dlrm's code cuts Kaggle's rows, in their order, into seven pseudo-days, and
takes the 1TB logs' files for days; of the last day the first half is `test`, the second `validation`. torchrec's
example of DLRM, from which MLPerf's reference comes, names the halves the other way round. `heldout`, of which the
figures of a training are, is the first half in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from nestlab.data.criteo_conventions import Convention
from nestlab.errors import UserError

PSEUDO_DAYS = 7
LAST_DAY = "day_23"  # of the 1TB logs


@dataclass(frozen=True)
class Splits:
    """What a convention's splits are.

    Attributes:
        says: in a few words, for titles.
        details: for `DatasetInfo.convention`, by which results compare.
        rows: by name, those that every data set has in other places, or has not: the first row, and the one after the
            last.
    """

    says: str = "split by time"
    details: str = "split by time, the last 20 % held out"
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def days_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The rows of each input file, by its name without .gz: the first, and the one after the last."""
    borders = accumulate((part["rows"] for part in parts), initial=0)
    return dict(zip((part["input"].removesuffix(".gz") for part in parts), pairwise(borders), strict=True))


def splits_of(made: Convention, days: Mapping[str, tuple[int, int]]) -> Splits:
    """The splits of a convention in data of these days (see `days_of`), whichever are there.

    Raises:
        UserError: there are fewer rows than pseudo-days.
    """
    if not made.halves:
        return Splits()
    filled = {name: rows for name, rows in days.items() if rows[1] > rows[0]}
    name, (first, end) = list(filled.items())[-1]
    if len(filled) > 1:
        says, which = f"split by days, {name} last", name
    else:
        first, of = end - end // PSEUDO_DAYS, f" of {name}" if name.startswith("day_") else ""
        says, which = f"split by {PSEUDO_DAYS} pseudo-days{of}", f"the last of {PSEUDO_DAYS} pseudo-days{of}"
    if name.startswith("day_") and says != f"split by days, {LAST_DAY} last":
        which += f", in place of {LAST_DAY},"
    if first == end:
        raise UserError(f"convention={made.name}: {end} rows are no {PSEUDO_DAYS} days; use {PSEUDO_DAYS} or more")
    middle = first + (end - first + 1) // 2
    halves = dict(zip(made.halves, ((first, middle), (middle, end)), strict=True))
    details = f"{which} held out in halves: {' and '.join(made.halves)}; figures are of the first"
    return Splits(says, details, {"train": (0, first), "heldout": (first, middle), **halves})
