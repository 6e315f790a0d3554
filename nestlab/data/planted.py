"""The signal planted in a synthetic twin: a click probability that a factorisation model can learn."""

from __future__ import annotations

import numpy as np

from nestlab.splitmix import GOLDEN, mixed

# How the variance of the logit is shared out. Most of it lies where a small model finds it in an epoch or two.
_SHARES = {"dense": 0.40, "ids": 0.40, "pairs": 0.20}
_DENSE = (0, 1, 2, 4, 5, 6, 7, 10, 12)  # I1, I2, I3, I5, …: these act on the label
_IDS = (1, 4, 5, 7, 8, 9, 13, 16, 17, 19, 22, 24)  # few values, or a heavy head
_PAIRS = ((5, 16), (13, 22), (16, 24), (13, 16))
_FACTORS = 2
_HEAD = 40.0  # beyond about this rank an id's weight fades: a rare id cannot be learnt


def hash64(stream: int, values: np.ndarray) -> np.ndarray:
    """[n] integers -> [n] uint64, well mixed, distinct for distinct values of a stream (SplitMix64's finaliser)."""
    with np.errstate(over="ignore"):
        return mixed(values.astype(np.uint64) + np.uint64((stream + 1) * int(GOLDEN) % 2**64))


def expected_auc(p: np.ndarray, counts: np.ndarray) -> float:
    """The AUC expected of scores p [n] that are true probabilities, `counts` [n] samples each; ties count a half.

    0.5 where no pair of a click and a non-click is possible.
    """
    order = np.argsort(p, kind="stable")
    clicks, others = (p * counts)[order], ((1 - p) * counts)[order]
    below = np.cumsum(others) - others / 2
    pairs = clicks.sum() * others.sum()
    return float((clicks * below).sum() / pairs) if pairs > 0 else 0.5


class Signal:
    """p(click) = sigmoid(scale · z + shift); z is the sum of dense effects, id weights and pairwise factors.

    Weights are not stored: each is a hash of (seed, column, rank), so any cardinality costs nothing.
    """

    def __init__(self, seed: int, log_mean: np.ndarray, log_sd: np.ndarray) -> None:
        self._seed, self._mean, self._sd = seed, log_mean, log_sd
        rng = np.random.default_rng([seed, 2])
        self._slopes = rng.choice((-1.0, 1.0), len(_DENSE)) * rng.uniform(0.6, 1.4, len(_DENSE))
        self._absent = rng.normal(0.0, 0.5, len(_DENSE))
        self._parts = dict.fromkeys(_SHARES, (0.0, 1.0))
        self._scale, self._shift = 1.0, 0.0

    def calibrate(
        self, dense_nd: np.ndarray, ranks_nf: np.ndarray, missing: np.ndarray, click_rate: float, auc: float
    ) -> None:
        """Sets shares, scale and shift on a sample, so that the mean of p is `click_rate` and its AUC is `auc`."""
        raw = self._raw(dense_nd, ranks_nf, missing)
        self._parts = {name: (float(v.mean()), float(v.std()) or 1.0) for name, v in raw.items()}
        z, ones = self._combine(raw), np.ones(len(dense_nd))
        low, high = 0.0, 20.0
        for _ in range(25):
            self._scale = (low + high) / 2
            self._shift = shift_for(self._scale * z, click_rate)
            reached = expected_auc(sigmoid(self._scale * z + self._shift), ones)
            low, high = (self._scale, high) if reached < auc else (low, self._scale)

    def probability(self, dense_nd: np.ndarray, ranks_nf: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """[n] float64 in (0, 1)."""
        z = self._combine(self._raw(dense_nd, ranks_nf, missing))
        return sigmoid(self._scale * z + self._shift)

    def facts(self) -> dict[str, object]:
        """What is planted, for truth.json."""
        return {
            "variance_shares": dict(_SHARES),
            "dense": [f"I{i + 1}" for i in _DENSE],
            "ids": [f"C{f + 1}" for f in _IDS],
            "pairs": [f"C{f + 1}×C{g + 1}" for f, g in _PAIRS],
            "factors": _FACTORS,
            "scale": self._scale,
            "shift": self._shift,
        }

    def _raw(self, dense_nd: np.ndarray, ranks_nf: np.ndarray, missing: np.ndarray) -> dict[str, np.ndarray]:
        width = dense_nd.shape[1]
        gone = {f: missing[:, width + f] for f in {*_IDS, *(f for pair in _PAIRS for f in pair)}}
        dense = np.zeros(len(dense_nd))
        for k, i in enumerate(_DENSE):
            level = (np.log1p(np.maximum(dense_nd[:, i], 0)) - self._mean[i]) / self._sd[i]
            dense += np.where(missing[:, i], self._absent[k], self._slopes[k] * level)
        ids = sum(np.where(gone[f], 0.0, self._weight(f, 0, ranks_nf[:, f])) for f in _IDS)
        pairs = np.zeros(len(dense_nd))
        for f, g in _PAIRS:
            for k in range(1, 1 + _FACTORS):
                product = self._weight(f, k, ranks_nf[:, f]) * self._weight(g, k, ranks_nf[:, g])
                pairs += np.where(gone[f] | gone[g], 0.0, product)
        return {"dense": dense, "ids": ids, "pairs": pairs}

    def _combine(self, raw: dict[str, np.ndarray]) -> np.ndarray:
        """Standardised parts, weighted by the roots of their shares."""
        terms = [(share, raw[name], *self._parts[name]) for name, share in _SHARES.items()]
        return sum(np.sqrt(share) * (values - mean) / sd for share, values, mean, sd in terms)

    def _weight(self, feature: int, factor: int, ranks_n: np.ndarray) -> np.ndarray:
        """[n] float64: uniform with mean 0 and variance 1, fading with the rank."""
        stream = (self._seed * 64 + feature) * 8 + factor + 1_000
        return uniform_weight(stream, ranks_n) / np.sqrt(1.0 + ranks_n / _HEAD)


def uniform_weight(stream: int, values_n: np.ndarray) -> np.ndarray:
    """[n] float64: a weight an id, uniform with mean 0 and variance 1; a hash, so that no table of them is kept."""
    uniform = (hash64(stream, values_n) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return (uniform - 0.5) * np.sqrt(12.0)


def shift_for(logits: np.ndarray, click_rate: float) -> float:
    """What to add to logits [n], so that the mean probability is `click_rate`."""
    low, high = -60.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).mean() < click_rate else (low, middle)
    return (low + high) / 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
