"""Ranks under a bounded power law, drawn without a table of their probabilities."""

from __future__ import annotations

import numpy as np


def exponent_for(cardinality: int, top: float) -> float:
    """The exponent of a bounded power law over 1 … cardinality whose first value has the share `top`."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _top_share(cardinality, middle) < top else (low, middle)
    return (low + high) / 2


def draw_ranks(rng: np.random.Generator, n: int, cardinality: int, s: float) -> np.ndarray:
    """[n] int64 in 1 … cardinality, by inverting the distribution function of the continuous power law."""
    u, power = rng.random(n), 1.0 - s
    if abs(power) < 1e-9:
        x = np.exp(u * np.log(cardinality + 1.0))
    else:
        x = (1.0 + u * ((cardinality + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.clip(x.astype(np.int64), 1, cardinality)


def _top_share(cardinality: int, s: float) -> float:
    power = 1.0 - s
    if abs(power) < 1e-9:
        return float(np.log(2.0) / np.log(cardinality + 1.0))
    return float((2.0**power - 1.0) / ((cardinality + 1.0) ** power - 1.0))
