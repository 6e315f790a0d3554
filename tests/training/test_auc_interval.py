"""The interval of the AUC against scikit-learn's AUC of the same resamples."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from nestlab.training.metrics import auc_interval


@pytest.mark.parametrize("n, digits", [(2, 2), (7, 1), (300, 1), (300, 6)])
def test_equals_scikit_learn_resample_by_resample(n, digits):
    """Broken on purpose: ties counted as lost in place of half: the rounded predictions fail."""
    generator = np.random.default_rng(n)
    labels = np.concatenate(([0, 1], generator.integers(0, 2, n - 2))).astype(np.float32)
    predictions = np.round(generator.random(n) * 0.6 + 0.3 * labels, digits).astype(np.float32)
    low, high = auc_interval(labels, predictions, resamples=40, seed=3)
    assert (low, high) == pytest.approx(_by_scikit_learn(labels, predictions, 40, 3), abs=1e-12)


def _by_scikit_learn(labels, predictions, resamples, seed):
    drawn = np.random.default_rng(seed)
    values = []
    for _ in range(resamples):
        rows = drawn.integers(0, len(labels), len(labels))
        if 0 < labels[rows].mean() < 1:
            values.append(roc_auc_score(labels[rows], predictions[rows]))
    return tuple(np.percentile(values, [2.5, 97.5]))
