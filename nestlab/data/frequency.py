"""How often ids occur: counts drawn from a law of frequencies, as real logs have them, in place of ranks under Zipf.

P(count = k) ∝ k^−exponent · exp(−(k / cutoff)^stretch): a power law with a stretched-exponential cut-off. A plain Zipf
law that matches the share of the top 1 % makes the head far too hot; drawn counts do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

_NEGLIGIBLE = 30.0  # counts are listed up to a cut-off factor of exp(−30)


@dataclass(frozen=True)
class FrequencyLaw:
    """The law of an id's count, for ids that occur at all."""

    exponent: float
    cutoff: float
    stretch: float

    @cached_property
    def probabilities(self) -> np.ndarray:
        """[kmax] float64: of the counts 1 … kmax."""
        k = np.arange(1, 2 + int(self.cutoff * _NEGLIGIBLE ** (1 / self.stretch)), dtype=np.float64)
        weights = k**-self.exponent * np.exp(-((k / self.cutoff) ** self.stretch))
        return weights / weights.sum()

    @cached_property
    def mean(self) -> float:
        return float(self.probabilities @ np.arange(1, 1 + len(self.probabilities)))

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """[n] int64 counts, 1 or more."""
        return self._cumulative.searchsorted(rng.random(n) * self._cumulative[-1], side="right") + 1

    def draw_sum(self, rng: np.random.Generator, total: int) -> np.ndarray:
        """[m] int64 counts, as many as it takes for them to sum to `total`; the last one is what is left."""
        found, left = [np.zeros(0, np.int64)], total
        while left > 0:
            counts = self.draw(rng, 16 + int(1.1 * left / self.mean))
            stop = int(np.searchsorted(np.cumsum(counts), left)) + 1
            found.append(counts[:stop])
            left -= int(found[-1].sum())
        counts = np.concatenate(found)
        if left < 0:
            counts[-1] += left
        return counts

    def with_mean(self, mean: float) -> FrequencyLaw:
        """The same law with the cut-off that gives counts the mean `mean` (1.05 at least; some hundreds at most)."""
        low, high = np.log(0.05), np.log(1e4)
        for _ in range(40):
            middle = (low + high) / 2
            law = replace(self, cutoff=float(np.exp(middle)))
            low, high = (middle, high) if law._mean_up_to(1 << 16) < mean else (low, middle)
        return replace(self, cutoff=float(np.exp((low + high) / 2)))

    def _mean_up_to(self, most: int) -> float:
        """The mean, of counts to `most` alone where the law's tail goes far beyond."""
        k = np.arange(1, 2 + min(int(self.cutoff * _NEGLIGIBLE ** (1 / self.stretch)), most), dtype=np.float64)
        weights = k**-self.exponent * np.exp(-((k / self.cutoff) ** self.stretch))
        return float(weights @ k / weights.sum())

    def top_shares(self, parts: tuple[float, ...]) -> list[float]:
        """The share of all occurrences that belongs to the most frequent part of the ids, for each of `parts`."""
        p = self.probabilities[::-1]
        occurrences = np.cumsum(p * np.arange(len(p), 0, -1)) / self.mean
        return [float(np.interp(part, np.cumsum(p), occurrences)) for part in parts]

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(self.probabilities)


def top_shares(counts: np.ndarray, parts: tuple[float, ...]) -> list[float]:
    """As the law's: of counted ids, counts [m] int64 above 0; at least one id counts as the top. Nothing: zeros."""
    ordered = np.sort(counts)[::-1]
    tops = [ordered[: max(1, round(part * len(ordered)))].sum() for part in parts]
    return [float(top / max(1, ordered.sum())) for top in tops]
