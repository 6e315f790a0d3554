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
    return _invert(rng.random(n), cardinality, s)


def _invert(u: np.ndarray, cardinality: int, s: float) -> np.ndarray:
    power = 1.0 - s
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


def draw_with_top(rng: np.random.Generator, n: int, cardinality: int, top: float, s: float) -> np.ndarray:
    """[n] int64 in 1 … cardinality: 1 with the probability `top`, the others by a power law of the exponent s."""
    if cardinality == 1:
        return np.ones(n, np.int64)
    # One number a draw: where it falls below `top` the rank is 1, what lies above is stretched to 0 … 1.
    u = rng.random(n)
    tail = _invert((np.maximum(u, top) - top) / (1.0 - top), cardinality - 1, s) + 1
    return np.where(u < top, 1, tail)


def tail_exponent(cardinality: int, top: float, ids: int, draws: int) -> float:
    """The exponent for `draw_with_top` with which `draws` draws are expected to show `ids` distinct ranks.

    0 where even a flat tail shows fewer; and no more than keeps the second rank below the first.
    """
    low, high = 0.0, 6.0
    if cardinality > 2 and top < 0.5:
        high = min(high, exponent_for(cardinality - 1, top / (1.0 - top)))
    for _ in range(30):
        middle = (low + high) / 2
        shown = 1.0 + _expected_ids(cardinality - 1, middle, draws * (1.0 - top))
        low, high = (middle, high) if shown > ids else (low, middle)
    return (low + high) / 2


def _expected_ids(cardinality: int, s: float, draws: float) -> float:
    """Distinct ranks expected of so many draws of the bounded power law; ranks beyond 100 in groups of equal ratio."""
    if cardinality < 1:
        return 0.0
    edges = np.unique(np.rint(np.geomspace(100, max(cardinality, 100) + 1, 400)).astype(np.int64))
    edges = np.union1d(np.arange(1, min(100, cardinality + 1)), edges[edges <= cardinality + 1])
    edges = np.union1d(edges, [cardinality + 1]).astype(np.float64)
    mass = np.diff(_cumulative(edges, cardinality, s))
    width = np.diff(edges)
    return float((width * -np.expm1(-draws * mass / width)).sum())


def _cumulative(x: np.ndarray, cardinality: int, s: float) -> np.ndarray:
    """The continuous law's distribution function at x, 1 … cardinality + 1."""
    power = 1.0 - s
    if abs(power) < 1e-9:
        return np.log(x) / np.log(cardinality + 1.0)
    return (x**power - 1.0) / ((cardinality + 1.0) ** power - 1.0)
