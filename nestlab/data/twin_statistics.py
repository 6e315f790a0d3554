"""What a twin and its real sample are compared by: figures with their errors, distances, and what each may differ by.

A statistic's tolerance is what modelling may miss (a stated share of the real value, or a stated distance) plus what
chance does to two samples of these sizes (`twin_chance`). So a figure of 0 never passes where the real one is many
standard errors above 0, whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nestlab.data.twin_chance import MULTIPLE, ks_noise, mean_error, rate_error, tv_noise

REAL, PUBLISHED = "real rows", "published"
UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class Distribution:
    """A sample [n] of which the distance to another's counts. `worth`: how many independent values it is."""

    values: np.ndarray
    worth: float
    against: Callable[[Distribution, Distribution], tuple[float, float]]


@dataclass(frozen=True)
class Statistic:
    """One figure of a sample, or a distribution in place of a figure.

    Attributes:
        value: the figure, a share between 0 and 1 where the name says nothing else.
        miss: what modelling may miss of it, in its unit.
        error: the standard error of the value.
        why: what a larger difference than the tolerance comes from.
        compared: false where the two figures do not mean the same; `why` says in what.
    """

    name: str
    value: float
    miss: float
    error: float = 0.0
    why: str = UNEXPLAINED
    source: str = REAL
    sample: Distribution | None = None
    compared: bool = True


@dataclass(frozen=True)
class Compared:
    """One line of a report.

    Attributes:
        source: of `real`: real rows, or a published figure.
        miss, chance: the two parts of the tolerance: what modelling may miss; what chance does to two such samples.
        within: whether |twin − real| ≤ miss + chance; None: the two are not comparable, `why` says in what.
        why: what a larger difference comes from.
    """

    statistic: str
    source: str
    real: float
    twin: float
    miss: float
    chance: float
    within: bool | None
    why: str

    @property
    def tolerance(self) -> float:
        return self.miss + self.chance


def compare(real: Statistic, twin: Statistic) -> Compared:
    if real.sample is None:
        a, b, chance = real.value, twin.value, MULTIPLE * math.hypot(real.error, twin.error)
    else:
        a, (b, chance) = 0.0, real.sample.against(real.sample, twin.sample)
    within = bool(abs(a - b) <= real.miss + chance) if real.compared else None
    return Compared(real.name, real.source, a, b, real.miss, chance, within, "" if within else _reason(real, twin))


def _reason(real: Statistic, twin: Statistic) -> str:
    if real.sample is None or real.sample.against is not _differing:
        return real.why
    return f"{real.why}: {', '.join(np.setxor1d(real.sample.values, twin.sample.values))}"


def rate(name: str, hits: np.ndarray, part: float, why: str = UNEXPLAINED) -> Statistic:
    """The share of true values among `hits` [n] bool; `part` of it may be missed."""
    p = float(np.mean(hits)) if len(hits) else 0.0
    return share(name, p, part, rate_error(p, len(hits)), why)


def share(name: str, p: float, part: float, error: float, why: str = UNEXPLAINED) -> Statistic:
    """`part` of p may be missed, of 1 − p where that is less: a rate and its complement are judged alike."""
    return Statistic(name, p, part * min(p, 1 - p), error, why)


def mean(name: str, values: np.ndarray, part: float, why: str = UNEXPLAINED) -> Statistic:
    value = float(np.mean(values)) if len(values) else 0.0
    return Statistic(name, value, part * abs(value), mean_error(np.asarray(values)), why)


def reuses(name: str, keys: Sequence[np.ndarray], batch: int, parts: tuple[float, float], why: str) -> list[Statistic]:
    """Of columns of keys together: unique / look-ups of a batch, and the share of them that the batch before had."""
    found = np.array([reuse(column, batch) for column in keys])  # [columns, 2, batches]
    unique, again = found[:, 0].sum(axis=0), (found[:, 0] * found[:, 1]).sum(axis=0)[1:] / found[:, 0].sum(axis=0)[1:]
    return [
        mean(f"{name}, {batch:,}: unique", unique / len(keys), parts[0], why),
        mean(f"{name}, {batch:,}: in the last batch", again, parts[1], why),
    ]


def reuse(keys: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """[batches] unique over look-ups; [batches] share of a batch's unique keys that the one before had, the first 0."""
    batches = [np.unique(keys[i : i + batch]) for i in range(0, len(keys) - batch + 1, batch)]
    again = [np.isin(now, last, assume_unique=True).mean() for last, now in pairwise(batches)]
    return np.array([len(b) / batch for b in batches]), np.array([0.0, *again])


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance: the largest difference of the two distribution functions."""
    both = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(x), both, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def tv(a: np.ndarray, b: np.ndarray) -> float:
    """Total variation of two samples of few values: half the sum of the shares' differences."""
    _, shares = _shares(a, b)
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def ks_of(name: str, values: np.ndarray, miss: float, why: str = UNEXPLAINED, worth: float | None = None) -> Statistic:
    values = np.asarray(values, float)
    return Statistic(name, 0.0, miss, why=why, sample=Distribution(values, worth or len(values), _ks))


def tv_of(name: str, values: np.ndarray, miss: float, why: str = UNEXPLAINED) -> Statistic:
    return Statistic(name, 0.0, miss, why=why, sample=Distribution(np.asarray(values), len(values), _tv))


def differing(name: str, members: set, why: str = UNEXPLAINED) -> Statistic:
    """A set of words, of which no member may differ; what is reported is how many do, and where, which."""
    return Statistic(name, 0.0, 0.0, why=why, sample=Distribution(np.array(sorted(members), str), 1, _differing))


def together(name: str, missing: dict[str, np.ndarray]) -> Statistic:
    """Which columns are missing together: the pairs that are missing in the same rows, of those missing at all."""
    bits = {column: where.tobytes() for column, where in missing.items() if where.any()}
    return differing(name, {f"{a}={b}" for a in bits for b in bits if a < b and bits[a] == bits[b]})


def _shares(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the shares of the values in both together; those in each)."""
    values = np.union1d(a, b)
    counts = np.stack([np.bincount(np.searchsorted(values, x), minlength=len(values)) for x in (a, b)])
    return counts.sum(axis=0) / counts.sum(), counts / counts.sum(axis=1, keepdims=True)


def _ks(a: Distribution, b: Distribution) -> tuple[float, float]:
    if not len(a.values) or not len(b.values):
        return float(len(a.values) != len(b.values)), 0.0
    return ks(a.values, b.values), ks_noise(a.worth, b.worth)


def _tv(a: Distribution, b: Distribution) -> tuple[float, float]:
    both, _ = _shares(a.values, b.values)
    return tv(a.values, b.values), tv_noise(both, a.worth, b.worth)


def _differing(a: Distribution, b: Distribution) -> tuple[float, float]:
    return float(len(np.setxor1d(a.values, b.values))), 0.0
