"""How sure a mean over seeds is: 95 % intervals, by Student's t or by bootstrap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from nestlab.errors import UserError

LEVEL = 0.95
METHODS = ("t", "bootstrap")
RESAMPLES = 10_000
FEWEST_FOR_BOOTSTRAP = 8  # below, the percentiles of resampled means are far narrower than 95 %


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds, their standard deviation (n − 1), and the interval; NaN where there is none.

    Attributes:
        kind: `one setting`, `paired` (differences seed by seed) or `unpaired` (two independent groups).
    """

    mean: float
    sd: float
    n: int
    low: float
    high: float
    kind: str = "one setting"


def of_mean(values: Sequence[float], method: str = "t") -> Estimate:
    """The mean of one setting. One seed says nothing of the spread: no interval."""
    sample = np.asarray(values, dtype=float)
    n = len(sample)
    mean = float(sample.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    low, high = _bootstrap([sample]) if method == "bootstrap" else _t(mean, _error(sample), n - 1)
    return Estimate(mean, float(sample.std(ddof=1)), n, low, high)


def of_difference(first: dict[int, float], second: dict[int, float], method: str = "t") -> Estimate:
    """The mean of `second` less that of `first`, both by seed.

    Seeds that both have are compared one by one: what a seed does to both sides alike then cancels. With fewer than two
    such seeds the groups count as independent (Welch), if both have at least two.
    """
    shared = [seed for seed in first if seed in second]
    if len(shared) >= 2:
        paired = of_mean([second[seed] - first[seed] for seed in shared], method)
        return dataclasses.replace(paired, kind="paired")
    one, two = np.array(list(first.values()), dtype=float), np.array(list(second.values()), dtype=float)
    n = min(len(one), len(two))
    mean = float(two.mean() - one.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan, "unpaired")
    if method == "bootstrap":
        return Estimate(mean, math.nan, n, *_bootstrap([two, one]), "unpaired")
    parts = [_error(one) ** 2, _error(two) ** 2]
    total = sum(parts)
    freedom = total**2 / sum(p**2 / (len(s) - 1) for p, s in zip(parts, (one, two), strict=True)) if total else 1.0
    return Estimate(mean, math.nan, n, *_t(mean, math.sqrt(total), freedom), "unpaired")


def _error(sample: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(sample.std(ddof=1)) / math.sqrt(len(sample))


def _t(mean: float, error: float, freedom: float) -> tuple[float, float]:
    from scipy import stats

    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    return mean - reach, mean + reach


def _bootstrap(samples: list[np.ndarray]) -> tuple[float, float]:
    """Percentiles of the mean of the first sample (less that of the second) over resamples; the same every time.

    Raises:
        UserError: too few seeds for the method.
    """
    fewest = min(map(len, samples))
    if fewest < FEWEST_FOR_BOOTSTRAP:
        raise UserError(f"a bootstrap over {fewest} seeds is far too sure; use {FEWEST_FOR_BOOTSTRAP} or --interval t")
    generator = np.random.default_rng(0)
    means = [s[generator.integers(0, len(s), (RESAMPLES, len(s)))].mean(axis=1) for s in samples]
    drawn = means[0] if len(means) == 1 else means[0] - means[1]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
