"""What chance does to a statistic of a sample, so that a tolerance can be that and no more than a stated part beside.

Every error here is a standard error of one sample's own value; that of a difference is the root of the squares' sum.
"""

from __future__ import annotations

import math

import numpy as np

from nestlab.data.frequency import top_shares

MULTIPLE = 3.0  # standard errors that chance is allowed; both signs together it takes more in 0.27 % of samples
_BOOTSTRAPS = 40
# The share of sups of a Brownian bridge beyond this is that of a normal value beyond MULTIPLE: 2·exp(−2·c²) = 0.0027
# (Smirnov 1948, the first term of the limit of the two-sample statistic; ties make it smaller, never larger).
_KS = math.sqrt(-math.log(0.0027 / 2) / 2)


def rate_error(p: float, n: float) -> float:
    """Of a share p among n rows."""
    return math.sqrt(max(p * (1 - p), 0.0) / n) if n else 0.0


def distinct_error(counts: np.ndarray, n: int) -> float:
    """Of (distinct ids / n), from the ids' counts [ids] in n draws.

    The variance of the number of distinct ids is M(2n) − M(n) − n·M'(n)², where M(t) are those expected of t draws
    (Karlin 1967). With K1, K2, … ids seen once, twice, … : M(2n) − M(n) is estimated by K1 − K2 + K3 − … (Good and
    Toulmin 1956), cut at the third, which leaves no less where they fall; M'(n) by K1 / n. At least ¼: one rare id is
    there or is not, and seen ids do not tell.
    """
    once, twice, thrice = ((counts == k).sum() for k in (1, 2, 3))
    variance = once - twice + thrice - once**2 / n
    return math.sqrt(max(variance, 0.25)) / n


def mean_error(values: np.ndarray) -> float:
    return float(values.std() / math.sqrt(max(1, len(values))))


def top_share_errors(counts: np.ndarray, parts: tuple[float, ...]) -> np.ndarray:
    """[parts] of the shares of the most frequent ids, by bootstrap of the ids (seeded: a report repeats)."""
    rng = np.random.default_rng(0)
    shares = [top_shares(rng.choice(counts, len(counts)), parts) for _ in range(_BOOTSTRAPS)]
    return np.std(shares, axis=0)


def ks_noise(n: float, m: float) -> float:
    """What MULTIPLE standard errors are to a rate, to the distance of Kolmogorov and Smirnov of n and m values."""
    return _KS * math.sqrt(1 / n + 1 / m)


def tv_noise(shares: np.ndarray, n: float, m: float) -> float:
    """The total variation of two samples of the same `shares`: its mean and MULTIPLE standard errors.

    The mean is half the sum of E|normal| = √(2/π)·sd; by Efron and Stein the variance is at most ¼ (1/n + 1/m), since
    one row more or less moves it by at most 1/n.
    """
    both = 1 / n + 1 / m
    mean = 0.5 * math.sqrt(2 / math.pi) * np.sqrt(shares * (1 - shares) * both).sum()
    return float(mean + MULTIPLE * 0.5 * math.sqrt(both))


def effective(counts: np.ndarray) -> float:
    """How many independent values rows are worth that come in clusters of one value, `counts` rows each (Kish 1965)."""
    return float(counts.sum()) ** 2 / float((counts.astype(float) ** 2).sum())


def auc_error(auc: float, clicks: int, others: int) -> float:
    """Of an AUC (Hanley and McNeil 1982)."""
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (clicks - 1) * (one - auc**2) + (others - 1) * (two - auc**2)
    return math.sqrt(variance / (clicks * others))
